"""Finding, opening and reading checkpoints."""
