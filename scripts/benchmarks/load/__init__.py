"""A load generator: requests sent to a server, Triton or an engine, and what their clients saw."""
