"""Scripts refuse wrong arguments with their usage, and change nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu_check.sh"], "--out is missing"),
        (["gpu_check.sh", "--packed", ".", "--out", "."], "provider.so.xz is missing"),
        (["environments/pack_gpu_host.sh"], "pack_gpu_host.sh DIR [COMPUTE_CAPABILITY]"),
        (["pages/site.sh", "publish"], "scripts/pages/site.sh [serve|build]"),
        (["bench.py", "laod"], "'laod' is not a benchmark; did you mean load?"),
        (["bench.py", "gpu"], "bench.py gpu"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    name, *options = arguments
    command = [str(SCRIPTS / name), *options]
    if name.endswith(".py"):
        command.insert(0, sys.executable)
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []
