"""Shell scripts print their usage for invalid arguments and change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu_check.sh"], "--out is missing"),
        (["gpu_check.sh", "--nonsense"], "scripts/gpu_check.sh --rehearse --out DIR"),
        (["environments/pack_gpu_host.sh"], "pack_gpu_host.sh DIR [COMPUTE_CAPABILITY]"),
        (["pages/site.sh", "publish"], "scripts/pages/site.sh [serve|build]"),
    ],
)
def test_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    name, *options = arguments
    result = subprocess.run(
        [SCRIPTS / name, *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_packed_file_that_is_missing_is_named_before_anything_runs(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "packages.tar.xz").write_bytes(b"")
    command = [str(SCRIPTS / "gpu_check.sh"), "--packed", str(packed)]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    environment = {**os.environ, "PYTHON": sys.executable}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert "error: provider.so.xz is missing" in result.stderr
