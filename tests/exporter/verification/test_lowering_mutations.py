"""Verification notices each single mistake in lowering the LLaMA family to skipdec's kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_types import Checkpoints, Exported
from mutations import copy_bundle, edit_graph
from verified_bundles import verified

from skipdec.engines.errors import VerificationError
from skipdec.engines.kernels.library import find_library
from skipdec.engines.kernels.packing import gated_halves
from skipdec.exporter.architecture.llama.rotation import Frequencies, RotarySpec
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

pytestmark = [
    pytest.mark.usefixtures("verified_here"),
    pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled"),
]
FREQUENCIES = RotarySpec.frequencies
QUERY_NORM, KEY_NORM = 7, 8  # operands of Attention


def gate_and_up_exchanged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "skipdec.exporter.quantization.packed.gated_halves",
        lambda tensor: gated_halves(tensor)[::-1],
    )


def another_theta(patch: pytest.MonkeyPatch) -> None:
    def frequencies(spec: RotarySpec) -> Frequencies:
        return FREQUENCIES(spec.model_copy(update={"rope_theta": 2 * spec.rope_theta}))

    patch.setattr(RotarySpec, "frequencies", frequencies)


def attention_of(graph: onnx.GraphProto) -> onnx.NodeProto:
    (node,) = (node for node in graph.node if node.op_type == "Attention")
    return node


def leave_out(operand: int, graph: onnx.GraphProto) -> None:
    attention_of(graph).input[operand] = ""


def next_key_head(graph: onnx.GraphProto) -> None:
    """Give the queries of key head i the keys and values of head i + 1: 6 heads of 16, 2 of 16."""
    node = attention_of(graph)
    keys = 96 + np.roll(np.arange(32), 16)
    columns = np.concatenate([np.arange(96), keys, keys + 32])
    graph.initializer.append(onnx.numpy_helper.from_array(columns, "columns"))
    gather = onnx.helper.make_node("Gather", [node.input[0], "columns"], ["moved"], axis=2)
    node.input[0] = "moved"
    graph.node.insert(list(graph.node).index(node), gather)


@pytest.mark.parametrize("mistake", [gate_and_up_exchanged, another_theta])
def test_an_export_with_wrong_parameters_fails(
    mistake: Callable[[pytest.MonkeyPatch], None],
    checkpoint: Checkpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)
    options = {"dtype": "float16", "kernels": "skipdec", "output": tmp_path / "bundle"}
    with pytest.raises(VerificationError, match=r"engine layer_000|tokens"):
        export(ExportConfig(model=str(checkpoint("llama")), **options))


@pytest.mark.parametrize(
    ("structure", "mistake"),
    [
        ("llama", next_key_head),
        ("qwen3", partial(leave_out, QUERY_NORM)),
        ("qwen3", partial(leave_out, KEY_NORM)),
    ],
    ids=["next key head", "no query norm", "no key norm"],
)
def test_a_mistake_in_a_graph_is_located(
    structure: str,
    mistake: Callable[[onnx.GraphProto], None],
    checkpoint: Checkpoints,
    exported: Exported,
    tmp_path: Path,
) -> None:
    good = exported(structure, dtype="float16", kernels="skipdec")
    assert not verified(good, checkpoint(structure)).problems
    bundle = copy_bundle(good, tmp_path)
    edit_graph(bundle, "layer_002", mistake)
    report = verified(bundle, checkpoint(structure))
    assert [one.engine for one in report.engines if one.problems] == ["layer_002"]
