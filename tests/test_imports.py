"""What an import may cost: the runtime never loads the exporter's libraries, --help loads none."""

from __future__ import annotations

import subprocess
import sys

import pytest

import skipdec

EXPORTER_LIBRARIES = {"torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors"}


def loaded_modules(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``statement``."""
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules}, sep='\\n')"
    code = f"try:\n    {statement}\nexcept SystemExit:\n    pass\n{report}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "module", ["generator", "schedule", "tokens.sampling", "tokens.outputs", "kv.cache"]
)
def test_the_runtime_loads_no_exporter_library(module: str) -> None:
    loaded = loaded_modules(f"import skipdec.runtime.{module}")
    assert loaded & EXPORTER_LIBRARIES == set()
    assert "skipdec" in loaded


def test_every_public_name_loads_no_exporter_library() -> None:
    loaded = loaded_modules("from skipdec import *")
    assert loaded & (EXPORTER_LIBRARIES | {"huggingface_hub"}) == set()
    assert "numpy" in loaded


@pytest.mark.parametrize("name", sorted(skipdec._PUBLIC_NAMES))
def test_public_names_are_found_where_they_are_said_to_be(name: str) -> None:
    assert getattr(skipdec, name).__name__ == name


@pytest.mark.parametrize(
    ("module", "names"),
    {
        "calib.calibration": "calibrate",
        "calib.calibration_plan": "CalibrationConfig",
        "calib.data": "DataConfig",
        "calib.evaluation": "evaluate",
        "calib.evaluation_inputs": "BundleChoice EvaluationConfig",
        "calib.fit": "fit",
        "calib.fit_goal": "TargetSpeedup",
        "calib.fit_inputs": "FitConfig",
        "calib.fit_source": "BundleSource",
        "calib.rounding": "round_weights",
        "calib.rounding_plan": "RoundingConfig",
        "calib.tune": "tune",
        "calib.tune_config": "TuneConfig",
        "engines.bundle": "write_schedule",
        "exporter.config": "ExportConfig",
        "exporter.pipeline": "export",
    }.items(),
)
def test_imports_that_were_documented_before_there_were_folders_still_work(
    module: str, names: str
) -> None:
    imported: dict[str, object] = {}
    exec(f"from skipdec.{module} import {', '.join(names.split())}", imported)
    for name in names.split():
        assert imported[name] is getattr(skipdec, name)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in ("export", "build", "compare", "generate"))],
)
def test_help_loads_no_numeric_library(arguments: list[str]) -> None:
    loaded = loaded_modules(
        f"import sys; sys.argv = ['skipdec', *{arguments}]; from skipdec.cli import main; main()"
    )
    assert loaded & (EXPORTER_LIBRARIES | {"numpy", "onnxruntime"}) == set()
    assert "typer" in loaded


def test_commands_for_which_the_cpu_extra_is_too_little_name_the_one_they_need() -> None:
    dummy = ["opt-125m", "--load-format", "dummy"]
    commands = [
        ["export", *dummy],
        ["export", *dummy, "--target", "tensorrt", "--dry-run"],
        ["build", "bundle", "--target", "tensorrt"],
        ["build", "bundle", "--target", "tensorrt-rtx", "--dry-run"],
    ]
    code = (
        "import sys\n"
        f"for name in {EXPORTER_LIBRARIES | {'ml_dtypes', 'tensorrt', 'cuda'}}:\n"
        "    sys.modules[name] = None\n"  # as if it were not installed
        "from skipdec.cli import build_app\n"
        f"for command in {commands}:\n"
        "    try: build_app()(command)\n"
        "    except SystemExit as end: assert end.code == 3, end.code"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'skipdec[") == len(commands)


def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from skipdec.engines.errors import MissingExtraError
    from skipdec.engines.host import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(MissingExtraError, match=r"torch.*pip install 'skipdec\[export\]'"):
        extras.require_extra("export", "skipdec export")
