"""Examples, prompts with completions, as texts and as tokens."""
