"""A graph's norms become skipdec's operators, which compute the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from one_operator import kernel_session
from onnx import TensorProto, helper, numpy_helper

from skipdec.engines.kernels.library import DOMAIN, find_library
from skipdec.exporter.graphs.skipdec import NORMS, replace_norms

SIZE = 48


def graph_of_norms(op_type: str, with_bias: bool) -> ir.Model:
    random = np.random.default_rng(0)
    parameters = ["scale", "bias"] if with_bias else ["scale"]
    shape = ["rows", SIZE]
    graph = helper.make_graph(
        [
            helper.make_node(op_type, ["x", *parameters], ["once"], epsilon=1e-3),
            helper.make_node(op_type, ["once", *parameters], ["twice"]),
        ],
        "norms",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name in ("once", "twice")
        ],
        [
            numpy_helper.from_array(random.standard_normal(SIZE, np.float32), name)
            for name in parameters
        ],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def run(model: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    results: list[np.ndarray] = kernel_session(ir.to_proto(model), threads=1).run(None, {"x": x})
    return results


FORMS = [("LayerNormalization", True), ("LayerNormalization", False), ("RMSNormalization", False)]


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
@pytest.mark.parametrize(("op_type", "with_bias"), FORMS)
def test_replaced_norms_compute_the_same(op_type: str, with_bias: bool) -> None:
    model = graph_of_norms(op_type, with_bias)
    x = np.random.default_rng(1).standard_normal((3, SIZE), np.float32) / 100
    expected = run(model, x)
    replace_norms(model.graph)
    assert [(node.domain, node.op_type) for node in model.graph] == [(DOMAIN, NORMS[op_type])] * 2
    for actual, exact in zip(run(model, x), expected, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=0, atol=5e-6)
