"""A bundle behind OpenAI's completions protocol: `skipdec serve`."""
