"""``skipdec doctor`` tells what is there and how to get what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skipdec.cli import build_app
from skipdec.engines.cpu import processor_flags, processor_name
from skipdec.runtime import doctor


def test_json_report() -> None:
    result = CliRunner().invoke(build_app(), ["doctor", "--no-bandwidth", "--json"])
    report = json.loads(result.stdout)
    assert report["cores"] >= 1
    assert report["packages"]["numpy"]
    assert report["bandwidth"] is None
    assert "CPUExecutionProvider" in report["execution_providers"]


def test_missing_extras_come_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_modules", lambda extra: ("torch",) * (extra == "export"))
    report = doctor.examine_machine(bandwidth=False)
    assert report["missing"] == [
        {"extra": "export", "modules": ["torch"], "install": "pip install 'skipdec[export]'"}
    ]
    monkeypatch.setattr(doctor, "examine_machine", lambda **_: report)
    result = CliRunner().invoke(build_app(), ["doctor"], env={"COLUMNS": "200"})
    assert "pip install 'skipdec[export]'" in result.stdout


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        ("echo 'H200, 143771 MiB, 570.1, 9.0'", ["H200"]),
        ("exit 9", []),
    ],
)
def test_gpus_are_what_the_driver_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, gpus: list[str]
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [gpu["name"] for gpu in doctor._gpus()] == gpus


def test_processor_is_read_from_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Example 9\nflags\t\t: avx2 avx_vnni\n\nflags\t: other\n")
    assert processor_flags(cpuinfo) == {"avx2", "avx_vnni"}
    assert processor_name(cpuinfo) == "Example 9"
    assert processor_flags(tmp_path / "absent") == frozenset()
