"""What skipping costs and gains: texts, metrics, times."""
