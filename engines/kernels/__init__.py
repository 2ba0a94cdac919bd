"""skipdec's own CPU kernels: ONNX Runtime custom operators, written in C++ under native/."""
