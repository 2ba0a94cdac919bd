"""Run the GoogleTest cases of units/."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from programs import built_program


def test_every_googletest_case_passes(tmp_path: Path) -> None:
    program = built_program("skipdec-tests")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [program, f"--gtest_output=json:{report}", "--gtest_brief=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if not report.exists():  # the program crashed
        pytest.fail(f"exit code {done.returncode}\n{done.stdout[-20_000:]}")
    failed = [
        f"{suite['name']}.{case['name']}\n{failure['failure']}"
        for suite in json.loads(report.read_text())["testsuites"]
        for case in suite["testsuite"]
        for failure in case.get("failures", ())
    ]
    assert not failed, "\n\n".join(failed)
    assert done.returncode == 0, done.stdout[-20_000:]  # e.g. what a sanitizer found at the end
