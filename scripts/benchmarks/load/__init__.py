"""A load generator: sends requests to a server, Triton or an engine, and measures as a client."""
