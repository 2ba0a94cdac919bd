"""Copies of a graph's weights in this process's memory, in huge pages if available.

ONNX Runtime maps weights files: opening copies nothing, processes share the pages, and the system
can reclaim them. A copy belongs to one process and takes as long as reading, but its huge pages
need fewer page-table walks while a step streams gigabytes.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import onnxruntime

from ..documents import open_regular
from ..errors import BundleError
from ..manifest import EngineSpec
from ..memory import Array, HostMemory
from .initializers import external_tensors

if TYPE_CHECKING:
    from ..bundle import EngineBundle

_CHUNK = 1 << 20  # bytes; small enough to be hashed from the cache


def copy_weights(
    bundle: EngineBundle, spec: EngineSpec, options: onnxruntime.SessionOptions
) -> tuple[onnxruntime.OrtValue, ...]:
    """Read an engine's weights and make a session of ``options`` use them instead of the files.

    They are hashed while they are read if ``bundle.hashes_weights``. The caller must keep the
    returned values as long as the session.

    Raises BundleError for a file that differs from the manifest or is too short for the graph, and
    CapacityError if memory is short.
    """
    folder = PurePosixPath(spec.graph).parent
    files = {path: _read(bundle, path) for path in spec.weights}
    values = []
    try:
        for tensor in external_tensors(memoryview(bundle.read(spec.graph))):
            array = tensor.view(files[str(folder / tensor.file)])
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                array, tensor.element_type
            )
            options.add_initializer(tensor.name, value)
            values.append(value)
    except (LookupError, ValueError) as error:
        raise BundleError(
            f"engine {spec.name} ({bundle.file(spec.graph)})",
            f"its weights can't be found ({error}); export the model again",
        ) from error
    return tuple(values)


def _read(bundle: EngineBundle, path: str) -> Array:
    """Return the content of a weights file as uint8 [size]."""
    record = next(record for record in bundle.manifest.files if record.path == path)
    content = HostMemory().allocate(record.size)
    view, filled, digest = content.data, 0, hashlib.sha256()
    try:
        with open_regular(bundle.locate(path)) as file:
            while count := file.readinto(view[filled : filled + _CHUNK]):
                if bundle.hashes_weights:
                    digest.update(view[filled : filled + count])
                filled += count
    except OSError as error:
        raise _damaged(bundle, path, f"can't be read ({error.strerror or error})") from error
    if filled < record.size:
        raise _damaged(bundle, path, f"has {filled:,} bytes; expected {record.size:,}")
    if bundle.hashes_weights and digest.hexdigest() != record.sha256:
        seen = digest.hexdigest()
        raise _damaged(bundle, path, f"has SHA-256 {seen[:12]}…; expected {record.sha256[:12]}…")
    return content


def _damaged(bundle: EngineBundle, path: str, problem: str) -> BundleError:
    return BundleError(
        str(bundle.path), f"{path}: {problem}", "the bundle is damaged; export the model again"
    )
