"""Benchmarks and what they share; scripts/bench.py runs them."""
