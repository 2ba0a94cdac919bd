"""``skipdec doctor`` reports what is installed and how to get the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import command_line
import pytest

from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.engines.host.gpus import Gpu, GpuSurvey
from skipdec.engines.host.processor import processor_flags, processor_name
from skipdec.runtime.measuring import doctor


def test_json_reports_the_machine_and_packages() -> None:
    result = command_line.run("doctor", "--no-bandwidth", "--json")
    report = json.loads(result.stdout)
    assert report["cores"] >= 1
    assert report["packages"]["numpy"]
    assert report["bandwidth"] is None
    assert "CPUExecutionProvider" in report["execution_providers"]


@pytest.mark.parametrize("gpus", [(), (Gpu(0, "NVIDIA H200", "9.0", 2**37),)])
def test_missing_extras_are_listed_with_their_pip_commands(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...]
) -> None:
    lacking = ("export", "gpu", "tensorrt")
    monkeypatch.setattr(doctor, "missing_modules", lambda extra: ("torch",) * (extra in lacking))
    monkeypatch.setattr(doctor, "survey_gpus", lambda: GpuSurvey(gpus, note="none"))
    monkeypatch.setattr(doctor, "install_command", lambda extra: f"pip install 'skipdec[{extra}]'")
    monkeypatch.setattr(doctor, "_execution_providers", list)
    report = doctor.examine_machine(bandwidth=False)
    assert {
        "extra": "export",
        "modules": ["torch"],
        "install": "pip install 'skipdec[export]'",
    } in (report["missing"])
    fitting = ("gpu", "tensorrt", "export") if gpus else ("export",)
    assert tuple(entry["extra"] for entry in report["missing"]) == fitting
    monkeypatch.setattr(doctor, "examine_machine", lambda **_: report)
    result = command_line.run("doctor", env={"COLUMNS": "200"})
    assert "pip install 'skipdec[export]'" in result.stdout


@pytest.mark.parametrize(
    ("providers", "cpu", "gpu", "expected"),
    [
        (["CUDAExecutionProvider"], None, "1.31.1", ("1.31.1", None)),
        (["CPUExecutionProvider"], "1.31.1", None, (None, "built for CPUs; run: pip uninstall")),
        (["CPUExecutionProvider"], "1.31.1", "1.31.1", (None, "one hides the other; run: pip uni")),
        ([], None, None, (None, "onnxruntime-gpu is not installed; run: pip install ")),
    ],
)
def test_an_unusable_cuda_provider_is_explained(
    providers: list[str], cpu: str | None, gpu: str | None, expected: tuple[str | None, str | None]
) -> None:
    packages = {"onnxruntime": cpu, "onnxruntime-gpu": gpu}
    state = doctor.cuda_provider(providers, packages)
    version, problem = expected
    assert state["version"] == version
    assert state["problem"] is None if problem is None else problem in str(state["problem"])


def test_a_machine_without_a_gpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "survey_gpus", lambda: GpuSurvey(note="none at all"))
    result = command_line.run("doctor", "--no-bandwidth", env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "none at all" in result.stdout


def test_a_gpu_is_shown_with_problems_of_its_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    survey = GpuSurvey((Gpu(0, "NVIDIA H200", "9.0", 140 * 2**30),), cuda="13.0")
    monkeypatch.setattr(doctor, "survey_gpus", lambda: survey)
    monkeypatch.setattr(doctor, "_tensorrt", lambda target: {"version": None, "problem": "absent"})
    result = command_line.run("doctor", "--no-bandwidth", env={"COLUMNS": "200"})
    assert "NVIDIA H200, compute capability 9.0, 140 GiB, CUDA 13.0" in result.stdout
    assert re.search(r"tensorrt-rtx +absent", result.stdout)


def _not_found() -> None:
    return None


def _foreign() -> None:
    raise EnvironmentMismatchError("_native.abi3.so", "can't be loaded (wrong ELF class)")


@pytest.mark.parametrize(
    ("find", "reported"),
    [
        (_not_found, "not compiled, so ONNX Runtime's"),
        (_foreign, "_native.abi3.so can't be loaded (wrong ELF class)"),
    ],
)
def test_missing_kernels_are_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, find: Callable[[], None], reported: str
) -> None:
    monkeypatch.setattr(doctor, "find_library", find)
    result = command_line.run("doctor", "--no-bandwidth", env={"COLUMNS": "200"})
    assert re.search(f"CPU kernels +{re.escape(reported)}", result.stdout)


def test_compiled_kernels_are_reported_with_their_instruction_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "find_library", lambda: SimpleNamespace(instruction_set="neon"))
    result = command_line.run("doctor", "--no-bandwidth", env={"COLUMNS": "200"})
    assert re.search(r"CPU kernels +skipdec's, compiled; run on neon", result.stdout)


def test_processor_is_read_from_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Example 9\nflags\t\t: avx2 avx_vnni\n\nflags\t: other\n")
    assert processor_flags(cpuinfo) == {"avx2", "avx_vnni"}
    assert processor_name(cpuinfo) == "Example 9"
    assert processor_flags(tmp_path / "absent") == frozenset()
