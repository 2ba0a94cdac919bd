"""The runtime never loads the exporter's libraries, and --help loads none."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skipdec
from skipdec import cli
from skipdec.engines import errors

EXPORTER_LIBRARIES = {"torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors"}


def loaded_modules(statement: str) -> set[str]:
    """Return the top-level modules of a fresh interpreter after ``statement``."""
    report = "import sys; print('loaded:', *{name.partition('.')[0] for name in sys.modules})"
    code = f"try:\n    {statement}\nexcept SystemExit:\n    pass\n{report}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("loaded:")[2].split())


def test_public_names_load_no_exporter_library() -> None:
    loaded = loaded_modules("from skipdec import *")
    assert loaded & (EXPORTER_LIBRARIES | {"huggingface_hub"}) == set()
    assert "numpy" in loaded


def test_public_names_exist_in_their_listed_modules() -> None:
    for name in skipdec._PUBLIC_NAMES:
        assert getattr(skipdec, name).__name__ == name, name


def test_type_checkers_see_lazily_loaded_names() -> None:
    tree = ast.parse(Path(skipdec.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If)).body
    imports = {
        alias.name: "." * node.level + str(node.module)
        for node in typed
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == skipdec._PUBLIC_NAMES
    assert set(skipdec.__all__) == set(skipdec._RUNNING)


def test_every_error_is_public() -> None:
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert {name for name in known if name.endswith("Error")} <= set(skipdec.__all__)


def test_help_and_version_load_no_numeric_library() -> None:
    commands = [["--help"], ["--version"], *([name, "--help"] for name in cli._COMMANDS)]
    commands += [["schedule", name, "--help"] for name in ("show", "plot", "set")]
    loaded = loaded_modules(
        "from skipdec.cli import build_app\n"
        f"    for command in {commands}:\n"
        "        try: build_app()(command)\n"
        "        except SystemExit as end: assert not end.code, command"
    )
    assert loaded & (EXPORTER_LIBRARIES | {"numpy", "onnxruntime"}) == set()
    assert "typer" in loaded


def test_commands_name_the_extra_they_need() -> None:
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
    assert len(re.findall(r"pip install .*\[(export|tensorrt|tensorrt-rtx)\]", done.stderr)) == 4


def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from skipdec.engines.errors import MissingExtraError
    from skipdec.engines.host import installation

    def find_spec(name: str) -> object | None:
        return None if name == "torch" else object()

    monkeypatch.setattr(installation, "find_spec", find_spec)
    with pytest.raises(MissingExtraError, match=r"torch.*pip install .*\[export\]"):
        installation.require_extra("export", "skipdec export")
