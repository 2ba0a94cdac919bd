"""Benchmarks: what they measure and print; the commands beside this folder enter them."""
