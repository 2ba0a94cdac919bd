"""Paths of libskipdec, the runtime for C++ programs: library, headers and build files.

``pip install`` compiles it if there is a C++ compiler; Python works without it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...engines.constants import text
from ...engines.errors import EnvironmentMismatchError, unloadable
from ...engines.host.installation import install_command

SUBJECT = "libskipdec"
ONNXRUNTIME_VARIABLE = text("onnxruntime_variable")  # names the libonnxruntime.so to load

_ROOT = Path(__file__).parents[1] / "native"
_LIBRARY = "libskipdec.so.1"


@dataclass(frozen=True)
class NativePaths:
    """Absolute paths of libskipdec as it was compiled with this installation."""

    library: Path
    """The shared library, ``libskipdec.so.1``."""
    include_directory: Path
    """For ``#include <skipdec/skipdec.h>`` and ``<skipdec/skipdec.hpp>``."""
    cmake_directory: Path
    """``-Dskipdec_DIR=`` for ``find_package(skipdec)``."""
    pkg_config_directory: Path
    """For ``PKG_CONFIG_PATH``."""
    executable: Path
    """The program ``skipdec-run``."""


def native_paths() -> NativePaths:
    """Return the paths of libskipdec.

    Raises EnvironmentMismatchError with the remedy if it was not compiled.

    >>> native_paths().library.name
    'libskipdec.so.1'
    """
    root = _ROOT.resolve()
    lib = root / "lib"
    if not (lib / _LIBRARY).exists():
        again = install_command("cpu", "--force-reinstall", "--no-deps")
        raise EnvironmentMismatchError(
            SUBJECT,
            "was not compiled with this installation, because there was no C++ compiler or "
            "SKIPDEC_LIBSKIPDEC was 0; Python works without it. For C++ programs install g++ or "
            f"clang++, unset SKIPDEC_LIBSKIPDEC, then run: {again}",
        )
    return NativePaths(
        library=lib / _LIBRARY,
        include_directory=root / "include",
        cmake_directory=lib / "cmake" / "skipdec",
        pkg_config_directory=lib / "pkgconfig",
        executable=root / "bin" / "skipdec-run",
    )


def onnxruntime_library() -> Path | None:
    """Return the shared library of this environment's ONNX Runtime, without importing it."""
    package = find_spec("onnxruntime")
    folders = (package.submodule_search_locations if package else None) or ()
    found = (file for each in folders for file in Path(each, "capi").glob("libonnxruntime.so*"))
    return next(found, None)


def native_abi_version() -> int:
    """Load the library and return its ``skipdec_abi_version()``.

    Raises EnvironmentMismatchError if it is missing or can't be loaded.
    """
    path = native_paths().library
    try:
        function = ctypes.CDLL(str(path)).skipdec_abi_version
    except (OSError, AttributeError) as error:
        raise unloadable(path, error) from error
    function.argtypes, function.restype = (), ctypes.c_uint32
    return int(function())
