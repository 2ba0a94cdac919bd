"""The figures of a CPU that README.md and docs/benchmarks.md show."""
