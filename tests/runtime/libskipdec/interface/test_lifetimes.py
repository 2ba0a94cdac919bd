"""Open, cancel and close engines many times on ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from programs import PRESET, built_program
from runtimes import LIBRARY


def test_closing_engines_with_running_requests_leaks_no_memory(
    exported: Callable[..., Path],
) -> None:
    bundle = exported("pre_norm", kernels="auto", quantize="int8")
    done = subprocess.run(
        [built_program("lifetimes"), bundle, "150"],
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    if PRESET == "tests":  # a sanitizer retains freed memory and finds leaks itself
        assert late - early < 2_000  # KiB; 135 leaks of a step's buffers would exceed this
