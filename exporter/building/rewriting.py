"""Rewriting of a bundle's engines from skipdec's operators to ONNX Runtime's; needs no torch."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np

from ...engines.bundle import EngineBundle
from ...engines.manifest import EngineSpec
from ...engines.memory import Array
from ..architecture.weights import Parameter
from ..config import DEFAULT_TARGET
from ..graphs.expansion import expand
from ..quantization.packed import PackedQuantizer, weight_quantizer
from .canonical import CanonicalGraph, built_engine
from .engine import BuiltEngine, write_engine


def rewrite_engine(bundle: EngineBundle, spec: EngineSpec, directory: Path) -> BuiltEngine:
    """Write the engine ``spec`` of ``bundle`` for ONNX Runtime's operators under ``directory``.

    Codes and scales stay the same, in another layout; 16-bit values become float32. One weight is
    in memory at a time.
    """
    manifest = bundle.manifest
    source = CanonicalGraph(built_engine(bundle, spec))
    packing = weight_quantizer(spec.kind, manifest.precision)
    lowered = expand(source.graph(), spec.kind, manifest.model, manifest.precision)

    def tensors(parameter: Parameter) -> dict[str, Array]:
        if not (isinstance(packing, PackedQuantizer) and parameter.is_product):
            names = [name for name in source.tensors if _belongs(name, parameter)]
            return {name: source.read(name) for name in names}
        quantizer = packing.fitting(parameter)
        in_size, out_size = parameter.shape
        stored = {
            suffix: source.read(f"{parameter.name}.{suffix}")
            for suffix in quantizer.layout((in_size, out_size))
        }
        unpacked = quantizer.unpack(stored, (in_size, out_size))
        return {
            f"{parameter.name}.{suffix}" if suffix else parameter.name: np.asarray(tensor)
            for suffix, tensor in unpacked.items()
        }

    return write_engine(
        lowered, spec.kind, spec.layer_index, manifest.model, DEFAULT_TARGET, tensors, directory
    )


def _belongs(name: str, parameter: Parameter) -> bool:
    """Return True if a tensor is the parameter or one of its quantiser's tensors."""
    return name == parameter.name or name.rpartition(".")[0] == parameter.name
