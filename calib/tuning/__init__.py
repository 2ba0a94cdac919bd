"""Train a model to skip layers exactly as it will when it decodes."""
