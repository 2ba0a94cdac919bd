"""From logits to text."""
