"""Making a model ready to skip."""
