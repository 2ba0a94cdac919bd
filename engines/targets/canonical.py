"""The target canonical: standard operators, stored in the bundle and compiled later."""

from __future__ import annotations

from .target import Target

CANONICAL = Target(
    lowering="exporter.graphs.lowering:keep_canonical",
    quantizer="exporter.quantization.quantize:weight_quantizer",
    unused_cache="finite",
)
