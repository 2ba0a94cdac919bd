from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import pytest
from fixture_types import Exported
from mutations import copy_bundle, edit_parameters


@pytest.fixture
def bundle(exported: Exported) -> Path:
    return exported("pre_norm", keep_canonical=True)


run = partial(command_line.run, "compare")


def test_agreement_prints_a_table_and_exits_with_0(bundle: Path) -> None:
    result = run(bundle, "--layer", 0, "--layer", 5)
    assert result.exit_code == 0, result.stderr
    for text in ("layer_005", "cosine", "all outputs of 2 engines agree"):
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
        assert {each["engine"] for each in document["outputs"]} == {"layer_002"}
    else:
        assert "inside layer_002, step 0:" in result.stdout
