"""Comparison of skipdec with other engines."""
