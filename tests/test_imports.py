"""What an import may cost: the runtime never loads the exporter's libraries, --help loads none."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    assert loaded & EXPORTER_LIBRARIES == set()
    assert "numpy" in loaded


@pytest.mark.parametrize(
    "arguments", [["--help"], ["export", "--help"], ["build", "--help"], ["generate", "--help"]]
)
def test_help_loads_no_numeric_library(arguments: list[str]) -> None:
    loaded = loaded_modules(
        f"import sys; sys.argv = ['skipdec', *{arguments}]; from skipdec.cli import main; main()"
    )
    assert loaded & (EXPORTER_LIBRARIES | {"numpy", "onnxruntime"}) == set()
    assert "typer" in loaded


def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from skipdec.engines.errors import MissingExtraError
    from skipdec.engines.host import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(MissingExtraError, match=r"torch.*pip install 'skipdec\[export\]'"):
        extras.require_extra("export", "skipdec export")
