"""Tokens and text: what comes of logits."""
