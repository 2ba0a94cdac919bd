"""The compiled library of kernels: where it is, its instruction sets, and its sampler.

``pip install`` compiles it if there is a C++ compiler. Without it everything else works, on ONNX
Runtime's own operators.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EnvironmentMismatchError, UsageError, did_you_mean, unloadable
from ..manifest import Manifest

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

    from ..memory import Array  # imports NumPy

DOMAIN = "skipdec"  # of the operators in ONNX graphs
INSTRUCTION_SET_VARIABLE = "SKIPDEC_INSTRUCTION_SET"

_PATTERN = "_native*.so"
_NOT_FINITE, _FAILED = -1, -2  # results of skipdec_draw_token


@dataclass(frozen=True)
class KernelLibrary:
    """A loaded library of kernels; it stays loaded until the process ends."""

    path: Path
    handle: ctypes.CDLL = field(repr=False)

    @property
    def instruction_set(self) -> str:
        """Return the set in use: portable, neon, avx2, avxvnni, avx512vnni or amx.

        Raises EnvironmentMismatchError if SKIPDEC_INSTRUCTION_SET names one that can't run here.
        """
        name: bytes | None = self.handle.skipdec_instruction_set()
        if name is None:
            forced, allowed = os.environ[INSTRUCTION_SET_VARIABLE], self.instruction_sets
            raise EnvironmentMismatchError(
                INSTRUCTION_SET_VARIABLE,
                f"is {forced!r}; {did_you_mean(forced, allowed)}"
                f"on this processor it may be {', '.join(allowed)}, or unset for the first of them",
            )
        return name.decode()

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Return the sets that can run here, best first."""
        names: bytes = self.handle.skipdec_instruction_sets()
        return tuple(names.decode().split())

    def register(self, options: SessionOptions, threads: int | None) -> None:
        """Give ONNX Runtime's session the operators.

        They run on ``threads`` threads, which all sessions of the process with the same number
        share. With None they run on the threads of ONNX Runtime's session.
        """
        if threads is not None:
            options.add_session_config_entry("skipdec.threads", str(threads))
        options.register_custom_ops_library(str(self.path))


def find_library() -> KernelLibrary | None:
    """Return the library compiled with this installation, or None.

    Raises EnvironmentMismatchError if there is one that can't be loaded here.
    """
    return _load(Path(__file__).parent)


def require_library(subject: str) -> KernelLibrary:
    """Return ``find_library()``; raise EnvironmentMismatchError about ``subject`` without it."""
    library = find_library()
    if library is None:
        raise EnvironmentMismatchError(
            subject,
            "needs skipdec's kernels, which were not compiled with this installation; install "
            "again where there is a C++ compiler, or export the model for ONNX Runtime's: "
            "skipdec export MODEL --kernels onnxruntime",
        )
    return library


def kernels_in_use(manifest: Manifest) -> str:
    """Return the kernels that run a bundle here, e.g. ``skipdec avx512vnni``, or the target's name.

    Without the library: ``skipdec, not compiled here``. Raises EnvironmentMismatchError if it can't
    be loaded, or if SKIPDEC_INSTRUCTION_SET names a set that can't run here.
    """
    if manifest.kernels is None:
        return manifest.target
    library = find_library()
    if library is None:
        return f"{manifest.kernels}, not compiled here"
    return f"{manifest.kernels} {library.instruction_set}"


@lru_cache(maxsize=1)
def _load(directory: Path) -> KernelLibrary | None:
    found = sorted(directory.glob(_PATTERN))
    if not found:
        return None
    try:
        library = ctypes.CDLL(str(found[0]))
        for function in (library.skipdec_instruction_set, library.skipdec_instruction_sets):
            function.argtypes, function.restype = (), ctypes.c_char_p
        library.skipdec_drawing.argtypes, library.skipdec_drawing.restype = (), ctypes.c_void_p
        draw = library.skipdec_draw_token
        draw.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        draw.restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        raise unloadable(found[0], error) from error
    return KernelLibrary(found[0], library)


class _Draw(ctypes.Structure):
    """``skipdec::Draw`` in native/sampling/draw.h."""

    _fields_ = (
        ("inverse_temperature", ctypes.c_float),
        ("margin", ctypes.c_float),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("uniform", ctypes.c_double),
        ("token_ids", ctypes.c_void_p),
    )


class KernelDraw:
    """Sampler with the parameters of one request, described in native/sampling/draw.h.

    It keeps using the ``instruction_set`` that ``library`` has when this object is made.
    """

    def __init__(
        self,
        library: KernelLibrary,
        inverse_temperature: float,
        margin: float,
        top_k: int,
        top_p: float,
    ) -> None:
        self._drawing: int = library.handle.skipdec_drawing()
        self._draw_token = library.handle.skipdec_draw_token
        self._draw = _Draw(inverse_temperature, margin, max(0, top_k), top_p, 0.0, None)
        self._reference = ctypes.byref(self._draw)

    def draw(self, logits: Array, uniform: float, token_ids: Array | None = None) -> int | None:
        """Return the index that ``uniform`` selects in contiguous float32 [N]; None if not finite.

        ``token_ids`` int64 [N], contiguous and ascending, are those of the logits; None: their
        indices. Not thread-safe. Raises MemoryError.
        """
        self._draw.uniform = uniform
        self._draw.token_ids = None if token_ids is None else _address("token_ids", token_ids, "l")
        address = _address("logits", logits, "f")
        index: int = self._draw_token(self._drawing, self._reference, address, logits.size)
        if index == _FAILED:
            raise MemoryError("a token can't be drawn")
        return None if index == _NOT_FINITE else index


def _address(name: str, values: Array, code: str) -> int:
    """Return the address of contiguous ``values`` of NumPy's type ``code``."""
    if values.dtype.char != code or not values.flags.c_contiguous:
        raise UsageError(name, f"are {values.dtype}, strides {values.strides}")
    address: int = values.__array_interface__["data"][0]
    return address
