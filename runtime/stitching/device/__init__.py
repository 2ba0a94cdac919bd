"""Prompts and steps on a device that ONNX Runtime or TensorRT drives."""
