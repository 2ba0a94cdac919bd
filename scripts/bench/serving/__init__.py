"""Figures of running batches: what `scripts/bench_serving.py` prints."""
