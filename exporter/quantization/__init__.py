"""Quantisation of weights and activations."""
