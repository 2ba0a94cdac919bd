"""One step and one prompt on the memory of the host."""
