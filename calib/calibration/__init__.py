"""Measure activation ranges for static quantisation."""
