"""A bundle's engine in a process of its own, which is started again when it dies."""
