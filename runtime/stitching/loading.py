"""Load a bundle's engines into the stitcher that its backend needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from ...engines.backends.device import DeviceMemory
from ...engines.backends.session import EngineBackend, EngineSession
from ...engines.bundle import EngineBundle
from ...engines.errors import BundleError
from .device.stitcher import DeviceStitcher
from .host.stitcher import HostStitcher
from .protocol import Stitcher


def load_stitcher(
    bundle: EngineBundle, backend: EngineBackend, max_rows: int, padded_rows: Callable[[int], int]
) -> Stitcher:
    """Load all engines of ``bundle``; layers with static capacities in their smallest bucket.

    The plans of larger buckets are loaded when a batch first needs them, and kept. Weights that the
    backend does not hash itself are hashed at the same time, where the bundle asks for it. Raises
    the errors of the backend's ``load``.
    """
    engines = bundle.manifest.all_engines
    with bundle.weights_checked(spec for spec in engines if not backend.hashes_weights(spec)):
        return _load_stitcher(bundle, backend, max_rows, padded_rows)


def _load_stitcher(
    bundle: EngineBundle, backend: EngineBackend, max_rows: int, padded_rows: Callable[[int], int]
) -> Stitcher:
    manifest = bundle.manifest
    if backend.device is None and manifest.hidden_dtype == "bfloat16":
        raise BundleError(
            str(bundle.path),
            "computes in bfloat16, which ONNX Runtime's operators can't on a CPU; export the model "
            "again with --kernels skipdec, which keep such weights as they are",
        )
    embed, head = backend.load(bundle, manifest.embed), backend.load(bundle, manifest.head)
    layers = LayerSets(bundle, backend)
    if backend.device is None:
        return HostStitcher(embed, layers(None), head, max_rows)
    if manifest.candidates is None:
        raise BundleError(
            str(bundle.path), "has no engine for candidates, which devices need; export it again"
        )
    buckets = manifest.layers[0].buckets
    layers(buckets[0].capacity if buckets else None)
    return DeviceStitcher(
        cast(DeviceMemory, backend.memory),
        embed,
        layers,
        head,
        backend.load(bundle, manifest.candidates),
        max_rows,
        padded_rows,
    )


class LayerSets:
    """The layers' sessions by static KV capacity, or None where engines take any capacity."""

    def __init__(self, bundle: EngineBundle, backend: EngineBackend) -> None:
        self._bundle = bundle
        self._backend = backend
        self._loaded: dict[int | None, Sequence[EngineSession]] = {}

    def __call__(self, capacity: int | None) -> Sequence[EngineSession]:
        """Return the sessions for ``capacity``, loaded on first use."""
        if capacity not in self._loaded:
            self._loaded[capacity] = [
                self._backend.load(
                    self._bundle,
                    layer,
                    next((bucket for bucket in layer.buckets if bucket.capacity == capacity), None),
                )
                for layer in self._bundle.manifest.layers
            ]
        return self._loaded[capacity]
