"""Constants that Python and C++ share come from one file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from runpy import run_path
from typing import get_args

import pytest

from skipdec.engines import constants
from skipdec.engines.manifest import (
    DType,
    EngineKind,
    FloatType,
    KVType,
    Quantization,
    TensorRole,
)
from skipdec.runtime.tokens.outputs import FinishReason
from skipdec.runtime.tokens.sampling import SamplingParams

ROOT = Path(__file__).parents[2]
FILE = ROOT / "engines" / "constants" / "constants.json"
SPELLED_OUT = {  # spelled out for type checkers
    "data_types": get_args(DType),
    "float_types": get_args(FloatType),
    "kv_types": get_args(KVType),
    "quantizations": get_args(Quantization),
    "engine_kinds": tuple(EngineKind),
    "tensor_roles": tuple(TensorRole),
    "finish_reasons": get_args(FinishReason),
}


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_literal_types_in_python_equal_the_file(name: str) -> None:
    assert constants.names(name) == SPELLED_OUT[name]


def test_sampling_defaults_of_both_runtimes_are_equal() -> None:
    header = (ROOT / "runtime/native/src/tokens/sampling_params.h").read_text(encoding="utf-8")
    written = re.findall(r"^  \S+ (\w+)(?: = (\S+))?;", header, re.MULTILINE)
    words = {"": None, "true": True, "false": False}
    words["constants::kDefaultMaxTokens"] = constants.integer("default_max_tokens")
    native = {name: words[text] if text in words else float(text) for name, text in written}
    fields = SamplingParams.model_fields
    assert native == {
        name: None if field.default == () else field.default for name, field in fields.items()
    }


def test_setup_and_cmake_generate_the_same_header(tmp_path: Path) -> None:
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("no cmake")
    made, script = tmp_path / "constants.h", ROOT / "runtime/native/cmake/constants.cmake"
    subprocess.run([cmake, f"-DINPUT={FILE}", f"-DOUTPUT={made}", "-P", script], check=True)
    document = json.loads(FILE.read_text(encoding="utf-8"))
    assert run_path(str(ROOT / "setup.py"))["constants_header"](document) == made.read_text()


def test_every_constant_is_read_by_both_languages() -> None:
    python = _text("engines", "*.py") + _text("runtime", "*.py")
    native = _text("runtime/native/src", "*.cpp") + _text("runtime/native/src", "*.h")
    for key in json.loads(FILE.read_text(encoding="utf-8")):
        name = "k" + "".join(word.capitalize() for word in key.split("_"))
        assert key in SPELLED_OUT or re.search(rf'\b(integer|text|names)\("{key}"\)', python), key
        assert f"constants::{name}" in native, key


def _text(folder: str, pattern: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob(pattern))
