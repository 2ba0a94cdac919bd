from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mutations import copy_bundle, edit_parameters
from typer.testing import CliRunner, Result

from skipdec.cli import build_app

Exported = Callable[..., Path]


@pytest.fixture
def bundle(exported: Exported) -> Path:
    return exported("pre_norm", keep_canonical=True)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["compare", *map(str, arguments)])


def test_agreement_is_a_table_and_exit_code_0(bundle: Path) -> None:
    result = run(bundle, "--histogram", "--layer", 0, "--layer", 5)
    assert result.exit_code == 0, result.stderr
    for text in ("layer_005", "cosine", "all outputs of 2 engines agree", "<1e-8"):
        assert text in result.stdout
    assert result.stdout.startswith(
        f"{bundle.name} (onnxruntime) against {bundle.name} (canonical)"
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_divergence_is_reported_and_exits_with_1(
    bundle: Path, tmp_path: Path, as_json: bool
) -> None:
    copy = copy_bundle(bundle, tmp_path)
    edit_parameters(copy, "layer_002", ("fc1.bias",), lambda bias: (bias + 1,))
    result = run(copy, "--layer", 2, *(["--json", "-q"] if as_json else []))
    assert result.exit_code == 1
    assert "diverges first in layer_002" in result.stderr
    assert "Add fc1.bias" in result.stderr
    if as_json:
        document = json.loads(result.stdout)
        assert document["problem"].startswith("diverges first in layer_002")
        assert len(document["engines"]) == 1
    else:
        assert "inside layer_002, step 0:" in result.stdout


def test_a_recorded_generation_is_compared(
    bundle: Path, tmp_path: Path, own_thread_pools: None
) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"id": 1, "prompt_token_ids": [5, 6, 7], "max_tokens": 3}\n')
    calls = tmp_path / "calls"
    generated = ["generate", bundle, "--input", lines, "--record", calls, "-q", "--temperature", 0]
    generate = CliRunner().invoke(build_app(), [str(each) for each in generated])
    assert generate.exit_code == 0, generate.stderr
    result = run(bundle, "--inputs", calls, "--layer", 5)
    assert result.exit_code == 0, result.stderr
    assert "recorded in" in result.stdout
    assert "all outputs of 1 engines agree" in result.stdout
