"""Training steps at full and at reduced depth."""
