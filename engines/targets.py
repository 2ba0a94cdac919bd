"""The targets that engines are made for, each an entry of ``TARGETS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import choice


@dataclass(frozen=True, kw_only=True)
class Target:
    """Functions that make engines for a platform, and the backends that load them there.

    Each is named as ``folder.module:Attribute`` for ``engines.importing.load``: a machine that runs
    bundles lacks the exporter's packages, and one that exports may lack the GPU's.
    """

    lowering: str
    """A function ``(canonical graph, kind, model, precision) -> LoweredEngine``."""

    quantizer: str
    """A function ``(kind, precision) -> WeightQuantizer | None``."""

    backends: Mapping[str, str] = field(default_factory=dict)
    """EngineBackend classes by device (cpu, cuda or rehearsal), the default first.

    Constructed with a number of threads and the place of weights on the CPU, with a device index
    elsewhere.
    """

    is_compiled: bool = False
    """True if TensorRT compiles the lowered graphs to plans; else the graphs are the engines."""

    has_float32_activations: bool = False
    """True if activations and all parameters that are vectors are always float32."""

    widens_float16: bool = False
    """True if float16 weights become float32 when a CPU loads them."""


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
TENSORRT = Target(
    lowering="exporter.graphs.tensorrt:lower",
    quantizer="exporter.quantization.linear:weight_quantizer",
    backends={"cuda": "engines.trt.backend:TensorRtBackend"},
    is_compiled=True,
)
TENSORRT_RTX = replace(TENSORRT, backends={"cuda": "engines.trt.backend:TensorRtRtxBackend"})
CANONICAL = Target(  # standard operators, stored in the bundle and compiled later
    lowering="exporter.graphs.lowering:keep_canonical",
    quantizer="exporter.quantization.quantize:weight_quantizer",
)
SKIPDEC = Target(  # onnxruntime bundles that run on skipdec's own kernels
    lowering="exporter.graphs.skipdec:lower",
    quantizer="exporter.quantization.packed:weight_quantizer",
    has_float32_activations=True,
)

TARGETS: Mapping[str, Target] = {
    "onnxruntime": ONNX_RUNTIME,
    "tensorrt": TENSORRT,
    "tensorrt-rtx": TENSORRT_RTX,
    "canonical": CANONICAL,
    "skipdec": SKIPDEC,
}


def target_of(name: str) -> Target:
    """Return the target called ``name``. Raises UsageError, listing the targets, if unknown."""
    return choice(TARGETS, name, "target")


def default_device(target: str) -> str:
    """Return the device on which bundles of ``target`` run by default."""
    return next(iter(target_of(target).backends))


def exported_targets() -> tuple[str, ...]:
    """Return the targets whose bundles can be run."""
    return tuple(name for name, target in TARGETS.items() if target.backends)


def compiled_targets() -> tuple[str, ...]:
    """Return the targets whose engines are TensorRT plans."""
    return tuple(name for name, target in TARGETS.items() if target.is_compiled)
