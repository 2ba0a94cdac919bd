"""Attention of float16 layers rotates heads itself, at each row's own positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from built_engines import TOLERANCE, build, decode_ragged, operators, optimised, tiny_spec

from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec

FLOAT16 = PrecisionSpec(dtype="float16")
FITTING: dict[str, dict[str, Any]] = {
    "packed": {"head_norms": "none", "rope_scale": 1.0},
    "scaled": {"head_norms": "none"},
    "part of a head": {"head_norms": "none", "head_dim": 32},
    "norms of heads": {"head_norms": "head"},
    "norms of whole projections": {"head_norms": "whole"},
}


def spec(name: str) -> ModelSpec:
    return tiny_spec("llama", **{"head_dim": 16, "rotary_dim": 16, **FITTING[name]})


def written(path: Path) -> set[str]:
    return set(operators(onnx.load(path, load_external_data=False).graph))


@pytest.mark.parametrize("name", FITTING)
def test_ragged_rows_are_rotated_as_in_the_module(name: str, tmp_path: Path) -> None:
    for actual, expected in decode_ragged(spec(name), tmp_path, FLOAT16):
        np.testing.assert_allclose(actual, expected, atol=TOLERANCE["float16"], rtol=0)


def test_a_session_computes_the_rotation_tables_once(tmp_path: Path) -> None:
    built = build(EngineKind.LAYER, spec("packed"), tmp_path, FLOAT16)
    left = operators(optimised(tmp_path / built.spec.graph, tmp_path))
    assert not set(left) & {"Range", "Cos", "Sin", "RotaryEmbedding"}


@pytest.mark.parametrize("name", ["packed", "norms of heads"])
def test_heads_are_neither_split_for_rotation_nor_transposed(name: str, tmp_path: Path) -> None:
    built = build(EngineKind.LAYER, spec(name), tmp_path, FLOAT16)
    assert not written(tmp_path / built.spec.graph) & {"Transpose", "RotaryEmbedding"}


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [("float32", {"rotary_dim": 16}), ("float16", {"rotary_dim": 12})],
    ids=["float32", "a rotation of 12 elements, which the operator refuses"],
)
def test_other_rotations_stay_outside_attention(
    dtype: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    precision = PrecisionSpec(dtype=dtype)
    built = build(EngineKind.LAYER, tiny_spec("llama", **changes), tmp_path, precision)
    assert "RotaryEmbedding" in written(tmp_path / built.spec.graph)


@pytest.mark.parametrize("changes", [{}, *FITTING.values()], ids=["outside", *FITTING])
def test_no_shape_is_computed(changes: dict[str, Any], tmp_path: Path) -> None:
    """CUDA sessions refuse nodes that ONNX Runtime runs on the CPU, such as those of shapes."""
    built = build(EngineKind.LAYER, tiny_spec("llama", **changes), tmp_path, FLOAT16)
    assert not written(tmp_path / built.spec.graph) & {"Shape", "Concat"}
