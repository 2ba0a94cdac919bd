"""Comparison of two ways to run the same engines, through Polygraphy."""
