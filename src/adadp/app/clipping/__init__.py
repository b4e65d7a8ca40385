"""Clip rules beyond the fixed ones of the core."""
