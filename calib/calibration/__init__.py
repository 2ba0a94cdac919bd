"""Ranges of activations, for static quantisation."""
