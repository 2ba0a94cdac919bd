"""Tuning of OPT models."""
