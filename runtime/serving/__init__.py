"""Generation as a service."""
