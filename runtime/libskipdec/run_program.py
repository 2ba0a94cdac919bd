"""``skipdec-run`` on PATH: start the C++ program that was compiled with this installation."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from ...engines.errors import EnvironmentMismatchError
from .paths import ONNXRUNTIME_VARIABLE, native_paths


def main() -> None:
    """Replace this process by ``skipdec-run``, with the same arguments.

    It uses this environment's ONNX Runtime unless SKIPDEC_ONNXRUNTIME names another. If libskipdec
    was not compiled, it exits with 3 and names the remedy.
    """
    try:
        program = native_paths().executable
    except EnvironmentMismatchError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    if library := _onnxruntime_library():
        os.environ.setdefault(ONNXRUNTIME_VARIABLE, str(library))
    os.execv(program, [str(program), *sys.argv[1:]])


def _onnxruntime_library() -> Path | None:
    """Return the shared library of this environment's ONNX Runtime, without importing it."""
    package = find_spec("onnxruntime")
    folders = (package.submodule_search_locations if package else None) or ()
    found = (file for each in folders for file in Path(each, "capi").glob("libonnxruntime.so*"))
    return next(found, None)
