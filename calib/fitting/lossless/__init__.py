"""Choose the drafts that make full depth fastest on the user's own prompts."""
