"""Engine files: built, compiled, and remembered by their content."""
