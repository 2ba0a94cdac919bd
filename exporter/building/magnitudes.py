"""Weights that a 16-bit type can't hold: found before they are stored, and named."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from ...engines.errors import CheckpointError
from ...engines.manifest import FloatType
from ...engines.memory import Array
from ..architecture.weights import Parameter, TensorReader
from ..quantization.quantize import NOT_FINITE, finite

_BLOCK_BYTES = 1 << 24  # examined at a time


def row_blocks(array: Array) -> Iterator[Array]:
    """Yield consecutive rows of ``array``, some megabytes at a time."""
    rows = array.shape[0]
    step = max(1, _BLOCK_BYTES * rows // max(1, array.nbytes))
    for start in range(0, rows, step):
        yield array[start : start + step]


def require_range(array: Array, dtype: DTypeLike) -> None:
    """Raise NotFiniteError if a value becomes infinite in ``dtype``, a narrower type, or is NaN."""
    if array.dtype.kind == "f" and np.dtype(dtype).itemsize < array.dtype.itemsize:
        for block in row_blocks(np.atleast_1d(array)):
            with np.errstate(over="ignore"):  # which `finite` refuses
                finite(np.array([block.max(), block.min()]).astype(dtype))


def weight_error(parameter: Parameter, reader: TensorReader, dtype: FloatType) -> CheckpointError:
    """Return the error that names the tensors of ``parameter`` which ``dtype`` can't hold."""
    peaks = {name: _peak(reader.read(name)) for name in parameter.sources}
    name, peak = max(peaks.items(), key=lambda item: (not np.isfinite(item[1]), item[1]))
    most = float(ml_dtypes.finfo(np.dtype(dtype)).max)  # type: ignore[no-untyped-call]
    if not np.isfinite(peak) or peak <= most:
        return CheckpointError(name, NOT_FINITE)
    others = "float32" if dtype == "bfloat16" else "bfloat16 or float32"
    return CheckpointError(
        name,
        f"has {peak:.6g} as its largest magnitude; allowed: up to {most:.6g}, as {dtype} holds; "
        f"export with --dtype {others}",
    )


def _peak(array: Array) -> float:
    extremes = [(block.max(), block.min()) for block in row_blocks(np.atleast_1d(array))]
    return float(np.abs(np.array(extremes, np.float32)).max())
