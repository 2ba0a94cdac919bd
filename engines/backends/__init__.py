"""How one engine runs: the protocol, ONNX Runtime, and the devices."""
