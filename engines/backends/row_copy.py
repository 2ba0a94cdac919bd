"""A CUDA kernel, as PTX, that gathers rows of device memory by an index in device memory.

CUDA's own copies take addresses when they are enqueued, so a captured copy would always read the
same rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from ..errors import DeviceError

_THREADS = 256  # per block; a block copies one row
PTX = Path(__file__).with_name("row_copy.ptx").read_bytes()


class RowCopy:
    """The kernel, loaded for the calling thread's current GPU.

    Not allowed during a capture. Raises DeviceError if the driver rejects it.
    """

    def __init__(self) -> None:
        module = _call(driver.cuModuleLoadData, PTX + b"\0")
        self._kernel = _call(driver.cuModuleGetFunction, module, b"copy_rows")

    def launch(
        self, stream: int, target: int, source: int, index: int, *, rows: int, row_bytes: int
    ) -> None:
        """Enqueue on ``stream`` what `Device.copy_rows` describes."""
        arguments = (
            (target, source, index, row_bytes),
            (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong),
        )
        grid, block = (rows, 1, 1), (_THREADS, 1, 1)
        _call(driver.cuLaunchKernel, self._kernel, *grid, *block, 0, stream, arguments, 0)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Call a function of the CUDA driver and return its value, if any."""
    error, *values = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(error)
        raise DeviceError(f"CUDA call {function.__name__}", f"failed with {name.decode()}")
    return values[0] if values else None
