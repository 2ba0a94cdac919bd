"""Building and running TensorRT plans."""
