"""Measurements: bandwidth, cost, benchmarks, and reports on a machine and on a bundle."""
