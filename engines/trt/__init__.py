"""TensorRT: building plans, and running them."""
