"""Verification that a bundle computes the same as its checkpoint."""
