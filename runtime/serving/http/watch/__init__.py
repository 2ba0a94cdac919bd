"""Logs and traces of HTTP requests, and the record of a request that both show."""
