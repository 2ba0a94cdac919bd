"""Drafts of a model: training a layer for them, and measuring how many of them hold."""
