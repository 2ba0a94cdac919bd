"""Building and compiling engine files, and reusing them by content."""
