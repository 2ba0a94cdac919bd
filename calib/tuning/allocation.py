"""Memory allocation between the training steps on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3), with glibc's defaults below
_DEFAULTS = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}


@contextmanager
def kept_memory() -> Iterator[None]:
    """With glibc, keep freed memory in the process until the ``with`` block ends.

    PyTorch's CPU tensors come from malloc, which maps large ones anew each time. The kernel then
    clears every page that a step touches, which takes up to half of the step. Occasional calls of
    `return_free_memory` limit what is kept.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, -1)  # never
    try:
        yield
    finally:
        for parameter, default in _DEFAULTS.items():
            library.mallopt(parameter, default)
        return_free_memory()


def return_free_memory() -> None:
    """Return free memory to the system: gaps that tensors of other sizes did not fill."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") else None
