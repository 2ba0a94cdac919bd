"""The OPT family: structure, weights, modules and published sizes."""
