"""Continuous batching: which request runs when, at its own position, depth and schedule."""
