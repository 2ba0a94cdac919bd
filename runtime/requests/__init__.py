"""Requests that run together."""
