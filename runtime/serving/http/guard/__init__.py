"""Limits on connections, clients and keys, applied before a request is answered."""
