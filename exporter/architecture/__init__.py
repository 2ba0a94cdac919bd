"""The model family: everything that is OPT."""
