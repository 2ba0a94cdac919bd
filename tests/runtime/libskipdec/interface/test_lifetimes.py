"""Open, cancel and close engines again and again, on ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from programs import PRESET, built_program
from runtimes import LIBRARY


def test_closing_while_requests_run_leaves_nothing_behind(exported: Callable[..., Path]) -> None:
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
    if PRESET == "tests":  # a sanitizer keeps what is freed, and finds leaks itself
        assert late - early < 2_000  # KiB; 135 engines that leaked a step's buffers would hold more
