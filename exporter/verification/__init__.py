"""The proof that a bundle computes what its checkpoint does."""
