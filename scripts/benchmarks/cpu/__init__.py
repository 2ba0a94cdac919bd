"""The CPU figures of README.md and docs/benchmarks.md."""
