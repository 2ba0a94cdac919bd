"""Drawing a token from a row of logits, compiled."""

from __future__ import annotations

import ctypes

from ..errors import UsageError
from ..memory import Array
from .library import KernelLibrary

_NOT_FINITE, _FAILED = -1, -2
_MOST = 2**63 - 1  # of a c_int64, which takes larger integers modulo 2**64


class _Draw(ctypes.Structure):
    """``skipdec::Draw`` of native/sampling/draw.h."""

    _fields_ = (
        ("inverse_temperature", ctypes.c_float),
        ("margin", ctypes.c_float),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("uniform", ctypes.c_double),
    )


class KernelDraw:
    """One request's parameters; see native/sampling/draw.h for what they say."""

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
        self._draw = _Draw(inverse_temperature, margin, min(max(0, top_k), _MOST), top_p, 0.0)
        self._reference = ctypes.byref(self._draw)

    def draw(self, logits: Array, uniform: float) -> int | None:
        """The place that ``uniform`` draws from contiguous float32 [V]; None if one is not valid.

        Not from two threads at once. Raises EnvironmentMismatchError if SKIPDEC_INSTRUCTION_SET
        names what can't run here, MemoryError.
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
