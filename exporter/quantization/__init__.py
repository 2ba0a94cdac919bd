"""Weights and activations in few bits."""
