"""Training a model to skip, exactly as it will decode."""
