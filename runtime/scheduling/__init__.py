"""Continuous batching: each request runs at its own position, depth and schedule."""
