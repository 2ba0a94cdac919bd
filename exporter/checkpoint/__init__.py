"""A checkpoint: found, opened, read."""
