"""Sampling of a token from a row of logits, in compiled code."""

from __future__ import annotations

import ctypes

from ..errors import UsageError
from ..memory import Array
from .library import KernelLibrary

_NOT_FINITE, _FAILED = -1, -2
_MAX_INT64 = 2**63 - 1  # ctypes wraps larger integers around


class _Draw(ctypes.Structure):
    """``skipdec::Draw`` in native/sampling/draw.h."""

    _fields_ = (
        ("inverse_temperature", ctypes.c_float),
        ("margin", ctypes.c_float),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("uniform", ctypes.c_double),
    )


class KernelDraw:
    """Sampler with one request's parameters; native/sampling/draw.h describes them."""

    def __init__(
        self,
        library: KernelLibrary,
        inverse_temperature: float,
        margin: float,
        top_k: int,
        top_p: float,
    ) -> None:
        self._library = library
        self._draw_token = library.draw_token
        self._draw = _Draw(inverse_temperature, margin, min(max(0, top_k), _MAX_INT64), top_p, 0.0)
        self._reference = ctypes.byref(self._draw)

    def draw(self, logits: Array, uniform: float) -> int | None:
        """Return the index that ``uniform`` selects in contiguous float32 [V]; None if not finite.

        Not thread-safe. Raises EnvironmentMismatchError if SKIPDEC_INSTRUCTION_SET names a set that
        can't run here, and MemoryError.
        """
        if logits.dtype.char != "f" or not logits.flags.c_contiguous:
            raise UsageError("logits", f"are {logits.dtype}, strides {logits.strides}")
        self._draw.uniform = uniform
        address: int = logits.__array_interface__["data"][0]
        place = self._draw_token(self._reference, address, logits.size)
        if place == _FAILED:
            assert self._library.instruction_set
            raise MemoryError("a token can't be drawn")
        return None if place == _NOT_FINITE else place
