"""Requests to generate and to score, and the checks of them."""
