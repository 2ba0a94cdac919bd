"""The figures of a CPU, a file for each kind."""
