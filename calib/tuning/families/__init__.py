"""The model families that can be tuned: what they are, and the models that skip layers."""
