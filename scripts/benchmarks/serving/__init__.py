"""The figures of running batches."""
