"""Kernels of our own for the CPU: ONNX Runtime custom operators, written in C++ under native/."""
