"""KV-cache memory."""
