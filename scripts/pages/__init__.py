"""Pages generated from code and figures: the reference and benchmarks."""
