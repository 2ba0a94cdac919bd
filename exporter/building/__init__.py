"""Engine files: building, compiling, and reuse by content."""
