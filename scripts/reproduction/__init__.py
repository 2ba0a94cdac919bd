"""Reproduce the paper's table."""
