"""The compiled library of kernels: its location and the instruction sets it can use.

``pip install`` compiles it if there is a C++ compiler. Without it everything else works, on ONNX
Runtime's own operators.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import EnvironmentMismatchError, did_you_mean
from ..manifest import Manifest

DOMAIN = "skipdec"  # of the operators in ONNX graphs
INSTRUCTION_SET_VARIABLE = "SKIPDEC_INSTRUCTION_SET"

_PATTERN = "_native*.so"


@dataclass(frozen=True)
class KernelLibrary:
    """A loaded library of kernels; it stays loaded until the process ends."""

    path: Path
    _library: ctypes.CDLL

    @property
    def instruction_set(self) -> str:
        """Return the set in use: portable, neon, avx2, avxvnni, avx512vnni or amx.

        Raises EnvironmentMismatchError if SKIPDEC_INSTRUCTION_SET names one that can't run here.
        """
        name: bytes | None = self._library.skipdec_instruction_set()
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
        names: bytes = self._library.skipdec_instruction_sets()
        return tuple(names.decode().split())

    @property
    def draw_token(self) -> Callable[[object, int, int], int]:
        """Return the C function that `KernelDraw` calls."""
        function: Callable[[object, int, int], int] = self._library.skipdec_draw_token
        return function


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
            "again where there is a C++ compiler, or rewrite the bundle, in seconds, for ONNX "
            "Runtime's: skipdec build BUNDLE --target onnxruntime --kernels onnxruntime",
        )
    return library


def kernels_in_use(manifest: Manifest) -> str:
    """Return the kernels that run a bundle here, e.g. ``skipdec avx512vnni``, or the target's name.

    Without the library: ``skipdec, not compiled here``. Raises EnvironmentMismatchError if it can't
    be loaded, or can't run as SKIPDEC_INSTRUCTION_SET says.
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
        draw = library.skipdec_draw_token
        draw.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        draw.restype = ctypes.c_int64
    except (OSError, AttributeError) as error:  # built for another system, processor or version
        raise EnvironmentMismatchError(
            str(found[0]), f"can't be loaded ({error}); install skipdec again on this machine"
        ) from error
    return KernelLibrary(found[0], library)
