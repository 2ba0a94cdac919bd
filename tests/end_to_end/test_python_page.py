"""The program of docs/python.md runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_rows import write_examples

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_program_tunes_exports_evaluates_fits_and_writes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    write_examples(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["full", "2x", "3x"]
    assert "Green Door" in lines[-1]
