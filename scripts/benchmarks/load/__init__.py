"""A load generator: requests to a server, Triton or an engine, and their clients' view."""
