"""Examples: prompts with completions, as text and as tokens."""
