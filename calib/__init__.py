"""Prepare a model for layer skipping."""
