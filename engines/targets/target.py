"""What every target is, and their registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..manifest import UnusedCache
from ..registry import Registry

TARGETS = Registry(
    "target",
    {
        "onnxruntime": "engines.targets.onnxruntime:ONNX_RUNTIME",
        "tensorrt": "engines.targets.tensorrt:TENSORRT",
        "tensorrt-rtx": "engines.targets.tensorrt:TENSORRT_RTX",
        "canonical": "engines.targets.canonical:CANONICAL",
        "skipdec": "engines.targets.skipdec:SKIPDEC",
    },
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """How engines are made for something that runs them, and what loads them there.

    What does it is named, ``folder.module:Attribute``, for ``engines.registry.load``: a machine
    that runs bundles has no exporter's packages, and one that exports has no GPU's.
    """

    lowering: str
    """A function ``(canonical graph, kind, model, precision) -> LoweredEngine``."""

    quantizer: str
    """A function ``(kind, precision) -> WeightQuantizer | None``."""

    backends: Mapping[str, str] = field(default_factory=dict)
    """By device, cpu, cuda or rehearsal, the default one first: classes of EngineBackend.

    Made with a number of threads and the place of weights on the CPU, with a device's index
    elsewhere.
    """

    is_compiled: bool = False
    """Whether TensorRT compiles the lowered graphs to plans; else the graphs are the engines."""

    has_float32_activations: bool = False
    """Whether activations, and all parameters that are vectors, are float32 in any bundle."""

    unused_cache: UnusedCache = "any"
    """What unused positions of a KV cache may hold; see ``KVCacheSpec``."""

    widens_float16: bool = False
    """Whether float16 weights become float32 when a CPU loads them."""


def target_of(name: str) -> Target:
    """Return the target called ``name``. Raises UsageError, naming those that there are."""
    target: Target = TARGETS.load(name)
    return target


def exported_targets() -> tuple[str, ...]:
    """Return the targets whose bundles can be run."""
    return tuple(name for name in TARGETS if target_of(name).backends)


def compiled_targets() -> tuple[str, ...]:
    """Return the targets whose engines are TensorRT's plans."""
    return tuple(name for name in TARGETS if target_of(name).is_compiled)
