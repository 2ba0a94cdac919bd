"""The target skipdec: onnxruntime bundles that run on skipdec's own kernels."""

from __future__ import annotations

from .target import Target

SKIPDEC = Target(
    lowering="exporter.graphs.skipdec:lower",
    quantizer="exporter.quantization.packed:weight_quantizer",
    has_float32_activations=True,
)
