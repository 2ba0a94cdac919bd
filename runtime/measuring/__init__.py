"""Yardsticks: bandwidth, cost, benchmarks, and what a machine and a bundle are."""
