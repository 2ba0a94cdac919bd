"""Backends that run single engines: the protocol, ONNX Runtime, and the devices."""
