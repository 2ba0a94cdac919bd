"""Choose the exit schedule that reaches a goal on the user's own data."""
