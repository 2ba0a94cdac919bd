"""Reader of canonical engines, from which others are built; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ...engines.bundle import EngineBundle
from ...engines.errors import BundleError
from ...engines.manifest import EngineSpec
from ...engines.memory import Array
from .engine import BuiltEngine


@dataclass(frozen=True)
class CanonicalGraph:
    """Graph and weights of a canonical engine on disk; files are only read."""

    engine: BuiltEngine

    @property
    def weights_path(self) -> Path | None:
        """Return the path of the weights file; None for an engine without weights."""
        weights = self.engine.spec.weights
        return self.engine.directory / weights[0] if weights else None

    def graph(self) -> ir.Model:
        """Return a copy of the graph whose weight initialisers have no data."""
        copy = self._stored.clone()
        for name in self.tensors:
            copy.graph.initializers[name].const_value = None
        return copy

    @cached_property
    def tensors(self) -> Mapping[str, ir.ExternalTensor]:
        """Return each weight's offset and length in ``weights_path``, dtype and shape."""
        return {
            name: value.const_value
            for name, value in self._stored.graph.initializers.items()
            if isinstance(value.const_value, ir.ExternalTensor)
        }

    def read(self, name: str) -> Array:
        """Return the weight ``name`` as stored, memory-mapped and read-only."""
        tensor = self.tensors[name]
        path = self.weights_path
        assert path is not None
        dtype, shape = tensor.dtype.numpy(), tuple(int(size) for size in tensor.shape.numpy())
        return np.memmap(path, dtype, "r", tensor.offset or 0, shape)

    @cached_property
    def _stored(self) -> ir.Model:
        return ir.load(self.engine.directory / self.engine.spec.graph)


def canonical_engines(bundle: EngineBundle) -> tuple[BuiltEngine, ...]:
    """Return the canonical engines in ``bundle``, in the manifest's order.

    Raises BundleError for a bundle that was exported without ``--keep-canonical``.
    """
    manifest = bundle.manifest
    if not manifest.canonical:
        raise BundleError(
            str(bundle.path),
            "has no canonical engines to build from; export the model again with --keep-canonical",
        )
    missing = [
        engine.name
        for engine in manifest.all_engines
        if engine.name not in {kept.name for kept in manifest.canonical}
    ]
    if missing:
        raise BundleError(
            str(bundle.path),
            f"has no canonical form of {', '.join(missing)}; export the model again with "
            "--keep-canonical",
        )
    return tuple(built_engine(bundle, spec) for spec in manifest.canonical)


def built_engine(bundle: EngineBundle, spec: EngineSpec) -> BuiltEngine:
    """Return the existing ONNX engine ``spec`` of ``bundle``."""
    records = {record.path: record for record in bundle.manifest.files}
    return BuiltEngine(
        spec=spec,
        files=tuple(records[path] for path in (spec.graph, *spec.weights)),
        directory=bundle.path,
        resumed=True,
    )
