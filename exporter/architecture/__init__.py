"""Model families: their common interface, and a folder for each."""
