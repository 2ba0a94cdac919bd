"""A bundle's engine in a worker process, which is restarted when it dies."""
