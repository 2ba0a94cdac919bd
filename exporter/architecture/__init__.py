"""Model families: their common interface, and what each is."""
