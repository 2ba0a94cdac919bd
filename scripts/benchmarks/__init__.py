"""Benchmarks and their shared modules; scripts/bench.py runs them."""
