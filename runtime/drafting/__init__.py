"""Drafts: guesses of the tokens to come, where they come from, and how many pay."""
