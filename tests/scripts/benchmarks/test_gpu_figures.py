"""Any step of a GPU check may fail, hang or be interrupted; the others still run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import figures as gpu_figures
from benchmarks.gpu.figures import GpuCheck, GpuCheckConfig
from benchmarks.gpu.report import BASELINE, GpuReport
from hollow_bundles import write_hollow_bundle

from skipdec.runtime.schedule import ExitSchedule

BENCH = {
    "measurements": [
        {
            "name": "full",
            "batch_size": 1,
            "realised_depth": 12.0,
            "step_milliseconds_p50": 2.0,
            "step_milliseconds_p95": 3.0,
            "tokens_per_second": 500.0,
            "decode_speedup": 1.0,
            "bytes_per_step": 10,
        }
    ]
}
Answer = Callable[[list[str]], str]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the skipdec commands that run; each is replaced by ``print(answers[name])``."""
    called: list[list[str]] = []

    def command(*arguments: str) -> list[str]:
        called.append(list(arguments))
        name = arguments[0]
        if name == "export":
            write_hollow_bundle(Path(arguments[3]), ExitSchedule.full(3))
        if name == "build" and "--target=tensorrt" in arguments:
            return [sys.executable, "-c", "import sys; sys.exit('no TensorRT | here')"]
        if name == "bench" and "--batch-sizes=8" in arguments:
            return [sys.executable, "-c", "import os; os.abort()"]
        return [sys.executable, "-c", f"print({json.dumps(json.dumps(BENCH))})"]

    monkeypatch.setattr(gpu_figures, "skipdec_command", command)
    monkeypatch.setattr(gpu_figures, "_missing_module", lambda: "torch")
    return called


def check(work: Path, **changes: Any) -> tuple[GpuReport, list[GpuReport]]:  # noqa: ANN401
    seen: list[GpuReport] = []
    defaults: dict[str, Any] = {"device": "rehearsal", "batch_sizes": (1, 8), "probe_bytes": 2**20}
    config = GpuCheckConfig(work=work, **{**defaults, **changes})
    return GpuCheck(config, seen.append).run("2 passed"), seen


def test_failures_are_rows_and_the_rest_goes_on(tmp_path: Path, commands: list[list[str]]) -> None:
    report, seen = check(tmp_path)
    assert [cell.backend for cell in report.cells] == ["onnxruntime", "tensorrt-rtx"]
    reasons = {(entry.what, entry.batch_size): entry.reason for entry in report.unmeasured}
    assert "torch is not installed" in reasons[BASELINE, None]
    assert "no TensorRT | here" in reasons["tensorrt", None]
    assert "ended with -6" in reasons["onnxruntime", 8]  # SIGABRT
    assert "ended with 1" in reasons["onnxruntime, running batch", 8]  # it loads the hollow bundle
    assert report.device is not None
    assert report.device.bandwidth > 0
    assert report.tests == "2 passed"
    assert len(seen) >= 7  # the page is written again after each step


def test_finished_figures_are_not_measured_again(tmp_path: Path, commands: list[list[str]]) -> None:
    check(tmp_path)
    kept = tmp_path / "onnxruntime-1.json"
    kept.write_text(kept.read_text().replace("2.0", "7.5"))
    report, _ = check(tmp_path)
    assert [cell.step_milliseconds_p50 for cell in report.cells] == [7.5, 2.0]


def test_a_time_limit_leaves_a_page_that_says_so(tmp_path: Path, commands: list[list[str]]) -> None:
    report, seen = check(tmp_path, seconds=0.0)
    assert report.cells == ()
    assert [entry.what for entry in report.unmeasured] == ["the device", "export"]
    assert "the limit of 0 s was reached" in report.unmeasured[0].reason
    assert seen[-1] == report


def test_a_carried_bundle_replaces_the_export(tmp_path: Path, commands: list[list[str]]) -> None:
    carried = tmp_path / "carried"
    write_hollow_bundle(carried, ExitSchedule.full(3))  # of at most 256 positions
    check(tmp_path / "work", bundle=carried, gpu_arch="8.9")
    assert not any(command[0] == "export" for command in commands)
    assert next(command[1] for command in commands if command[0] == "bench") == str(carried)
    builds = [command for command in commands if command[0] == "build"]
    assert [command[2] for command in builds] == ["--target=tensorrt-rtx", "--target=tensorrt"]
    expected = {"--max-batch-size=8", "--kv-buckets=192,256", "--gpu-arch=8.9", str(carried)}
    assert expected <= set(builds[0])
