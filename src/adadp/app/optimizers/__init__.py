"""Optimizers by name, and two step rules of the papers."""
