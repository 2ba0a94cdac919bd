"""Single operators of the CPU kernels against those of ONNX Runtime."""
