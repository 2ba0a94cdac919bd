"""Requests: checked, run as rows, and turned into results."""
