"""Shell scripts print their usage for invalid arguments and change nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu_check.sh"], "--out is missing"),
        (["gpu_check.sh", "--nonsense"], "scripts/gpu_check.sh --rehearse --out DIR"),
        (["environments/pack_wheels.sh"], "scripts/environments/pack_wheels.sh DIR [PIECE_MIB]"),
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
