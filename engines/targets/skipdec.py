"""The target skipdec: what bundles for onnxruntime hold where kernels of our own run them."""

from __future__ import annotations

from .target import Target

SKIPDEC = Target(
    lowering="exporter.graphs.skipdec:lower",
    quantizer="exporter.quantization.packed:weight_quantizer",
    has_float32_activations=True,
)
