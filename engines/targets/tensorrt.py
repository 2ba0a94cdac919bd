"""The targets tensorrt and tensorrt-rtx: the same graphs for two libraries."""

from __future__ import annotations

from dataclasses import replace

from .target import Target

TENSORRT = Target(
    lowering="exporter.graphs.tensorrt:lower",
    quantizer="exporter.quantization.linear:weight_quantizer",
    backends={"cuda": "engines.trt.backend:TensorRtBackend"},
    is_compiled=True,
    unused_cache="finite",
)
TENSORRT_RTX = replace(TENSORRT, backends={"cuda": "engines.trt.backend:TensorRtRtxBackend"})
