"""The model families that can be tuned, a folder each."""
