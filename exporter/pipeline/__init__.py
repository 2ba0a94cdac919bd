"""Pipelines from a checkpoint, or a bundle with canonical engines, to a published bundle."""
