"""Accountants and bounds as published."""
