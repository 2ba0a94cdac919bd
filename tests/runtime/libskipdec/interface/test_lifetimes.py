"""Open, cancel and close engines many times on ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import PRESET, built_program
from runtimes import LIBRARY


@pytest.fixture
def bundle(exported: Callable[..., Path]) -> Path:
    return exported("pre_norm", kernels="auto", quantize="int8")


def lifetimes(bundle: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Run lifetimes.cpp."""
    return subprocess.run(
        [built_program("lifetimes"), bundle, what],
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_exit_ends_running_requests_before_onnx_runtime(bundle: Path) -> None:
    done = lifetimes(bundle, "exit")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "engine | was closed\n")


def test_closing_engines_with_running_requests_leaks_no_memory(bundle: Path) -> None:
    done = lifetimes(bundle, "150")
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    if PRESET == "tests":  # a sanitizer retains freed memory and finds leaks itself
        assert late - early < 2_000  # KiB; 135 leaks of a step's buffers would exceed this
