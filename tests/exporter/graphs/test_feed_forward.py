"""A 16-bit feed-forward with ReLU adds its biases inside its second product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from built_engines import operators, optimised
from numpy.typing import NDArray

from skipdec.exporter.graphs.feed_forward import absorb_biases

SHAPES = {"w": (32, 64), "b": (64,), "v": (64, 32), "d": (32,)}


def parameters(scale_of_biases: float = 1.0) -> dict[str, NDArray[np.float16]]:
    rng = np.random.default_rng(0)
    scales = {"w": 0.2, "b": scale_of_biases, "v": 0.2, "d": scale_of_biases}
    return {
        name: (rng.standard_normal(shape) * scales[name]).astype(np.float16)
        for name, shape in SHAPES.items()
    }


def feed_forward(
    arrays: dict[str, NDArray[np.float16]], activation: str = "Relu", dtype: str = "float16"
) -> ir.Model:
    """Return ``activation(x w + b) v + d``; a bias that ``arrays`` lack is not added."""
    add = {
        ("h", "b"): "a = Add(h, b)" if "b" in arrays else "a = Identity(h)",
        ("p", "d"): "y = Add(p, d)" if "d" in arrays else "y = Identity(p)",
    }
    name = {"float32": "float"}.get(dtype, dtype)
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    g ({name}[n, 32] x) => ({name}[n, 32] y) {{
        h = MatMul(x, w)
        {add["h", "b"]}
        r = {activation}(a)
        p = MatMul(r, v)
        {add["p", "d"]}
    }}"""
    model = onnx.parser.parse_model(text)
    tensors = (onnx.numpy_helper.from_array(each.astype(dtype), n) for n, each in arrays.items())
    model.graph.initializer.extend(tensors)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


@pytest.mark.parametrize("scale", [0.1, 8.0])
def test_a_feed_forward_becomes_two_products_and_a_maximum(scale: float, tmp_path: Path) -> None:
    arrays = parameters(scale)
    model = feed_forward(arrays)
    absorb_biases(model.graph)
    content = ir.to_proto(model).SerializeToString()
    assert operators(optimised(content, tmp_path)) == {"MatMul": 2, "Max": 1}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((5, 32)).astype(np.float16)
    w, b, v, d = (arrays[name].astype(np.float64) for name in SHAPES)
    expected = np.maximum(x.astype(np.float64) @ w + b, 0) @ v + d
    error = np.abs(session.run(None, {"x": x})[0] - expected).max()
    assert error <= 2**-11 * np.abs(expected).max()  # half a unit of float16: the result's rounding


@pytest.mark.parametrize(
    ("missing", "activation", "dtype"),
    [
        ("b", "Relu", "float16"),
        ("d", "Relu", "float16"),
        ("", "Gelu", "float16"),
        ("", "Relu", "float32"),
    ],
    ids=["no first bias", "no second bias", "GELU", "float32"],
)
def test_any_other_feed_forward_is_unchanged(missing: str, activation: str, dtype: str) -> None:
    arrays = parameters()
    arrays.pop(missing, None)
    model = feed_forward(arrays, activation, dtype)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    absorb_biases(model.graph)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
