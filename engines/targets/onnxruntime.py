"""The target onnxruntime."""

from __future__ import annotations

from .target import Target

ONNX_RUNTIME = Target(
    lowering="exporter.graphs.onnxruntime:lower",
    quantizer="exporter.quantization.quantize:weight_quantizer",
    backends={
        "cpu": "engines.backends.ort:OrtBackend",
        "cuda": "engines.backends.ort_cuda:OrtCudaBackend",
        "rehearsal": "engines.backends.ort_cuda:OrtRehearsalBackend",
    },
    widens_float16=True,
)
