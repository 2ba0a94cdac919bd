"""Measure ranges of activations for static quantisation."""
