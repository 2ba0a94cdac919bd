"""Exit schedules, KV cache, stitching, sampling and generation over a bundle's engines."""
