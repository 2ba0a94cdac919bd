"""One step and one prompt on a device that ONNX Runtime or TensorRT drives."""
