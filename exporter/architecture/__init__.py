"""Model families: their common interface and their definitions."""
