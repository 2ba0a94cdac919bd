"""Drafts: guesses of the next tokens, where they come from, and how many are worth checking."""
