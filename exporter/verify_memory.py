"""How much memory a verification would take, and how much there is, in bytes."""

from __future__ import annotations

import math
from pathlib import Path

from ..engines.bundle import EngineBundle
from ..engines.manifest import ModelSpec
from .weights import expected_tensors


def loaded_bytes(bundle: EngineBundle) -> int:
    """Estimated memory of all engines loaded: weights as stored, float16 ones widened."""
    sizes = {record.path: record.size for record in bundle.manifest.files}
    stored = sum(sizes[path] for spec in bundle.manifest.engines for path in spec.weights)
    return stored * 2 if bundle.manifest.precision.dtype == "float16" else stored


def reference_bytes(model: ModelSpec) -> int:
    """Memory of the whole model in float32."""
    return 4 * sum(math.prod(shape) for shape in expected_tensors(model).values())


def available_memory() -> int:
    """Bytes that can be had without swapping (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/meminfo has no MemAvailable")
