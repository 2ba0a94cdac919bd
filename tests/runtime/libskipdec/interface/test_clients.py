"""Clients of libskipdec take turns and may each have a prefix cache."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import built_program
from runtimes import LIBRARY


def run(bundle: Path, sharing: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [built_program("clients"), bundle, str(sharing)],
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("sharing", "kept"), [(0, "0 0 0"), (1, "0 32 32"), (2, "0 0 32")], ids=["off", "all", "own"]
)
def test_clients_take_turns_and_share_prefixes_as_allowed(
    exported: Callable[..., Path], sharing: int, kept: str
) -> None:
    done = run(exported("pre_norm", kernels="auto", quantize="int8"), sharing)
    assert done.returncode == 0, done.stderr
    assert [line.strip() for line in done.stdout.splitlines()] == [kept, "a1 b1 a2 a3"]


def test_an_unknown_sharing_is_refused(exported: Callable[..., Path]) -> None:
    done = run(exported("pre_norm", kernels="auto", quantize="int8"), 3)
    assert done.returncode == 1
    assert "prefix_cache | is 3; allowed: 0, 1 and 2" in done.stderr
