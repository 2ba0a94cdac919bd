"""Examples: prompts and completions, as texts and as tokens."""
