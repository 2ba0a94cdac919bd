"""One step over the engines that a plan names."""
