"""Pages generated from the code and from figures: the reference, benchmarks."""
