"""Measure what layer skipping costs and gains: texts, metrics, times."""
