"""Shell scripts print their usage for invalid arguments and change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
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


def test_a_piece_of_the_wheels_that_is_missing_is_named_before_anything_runs(
    tmp_path: Path,
) -> None:
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for name in ("part.000", "part.001"):
        (pieces / name).write_bytes(name.encode())
    digest = [
        f"{sha256(piece.read_bytes()).hexdigest()}  {piece.name}" for piece in pieces.iterdir()
    ]
    (pieces / "SHA256SUMS").write_text("\n".join(digest) + "\n")
    (pieces / "part.001").unlink()
    command = [str(SCRIPTS / "gpu_check.sh"), "--wheels", str(pieces)]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    environment = {**os.environ, "PYTHON": sys.executable}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert "part.001: FAILED open or read" in result.stdout + result.stderr
    assert "error: not all pieces are in" in result.stderr
