"""``skipdec-run`` on PATH: start the C++ program that was compiled with this installation."""

from __future__ import annotations

import os
import sys

from ...engines.errors import EnvironmentMismatchError
from .paths import ONNXRUNTIME_VARIABLE, native_paths, onnxruntime_library


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
    if library := onnxruntime_library():
        os.environ.setdefault(ONNXRUNTIME_VARIABLE, str(library))
    os.execv(program, [str(program), *sys.argv[1:]])
