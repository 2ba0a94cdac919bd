"""The README's commands from tuning to fitting run as they are written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from example_rows import write_examples

from skipdec.engines.bundle import EngineBundle

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """The section's commands, each as its arguments."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## The loop\n")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [shlex.split(line) for line in block[1].replace("\\\n", " ").splitlines()]


@pytest.mark.slow
def test_the_loop_ends_in_a_bundle_with_the_fitted_schedule(tmp_path: Path) -> None:
    write_examples(tmp_path)
    printed = ""
    for program, *arguments in commands():
        assert program == "skipdec"
        result = subprocess.run(
            [sys.executable, "-c", "from skipdec.cli import main; main()", *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, (arguments, result.stderr)
        printed = result.stdout
    fitted = json.loads((tmp_path / "fitted.json").read_text())
    assert EngineBundle.open(tmp_path / "places-int8").schedule_document == fitted
    assert "Green Door" in printed


def test_the_example_rows_are_what_the_script_writes(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "data" / "example_rows.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=60)
    for name in ("train.jsonl", "dev.jsonl"):
        assert (tmp_path / name).read_bytes() == (ROOT / "examples" / name).read_bytes()
