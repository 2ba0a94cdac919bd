"""Bundles, and the backends that run single engines."""
