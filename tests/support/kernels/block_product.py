"""An int4 product in blocks as ONNX Runtime's MatMulNBits computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


def block_product_session(
    codes: Array, scale: Array, depth: int, threads: int = 1
) -> onnxruntime.InferenceSession:
    """x [M, depth] → y [M, N] for codes uint8 [N, blocks, block_size / 2], scale [N, blocks]."""
    columns, _, bytes_of_a_block = codes.shape
    float_type = onnx.TensorProto.FLOAT
    node = helper.make_node(
        "MatMulNBits",
        ["x", "codes", "scale"],
        ["y"],
        domain="com.microsoft",
        K=depth,
        N=columns,
        bits=4,
        block_size=2 * bytes_of_a_block,
        accuracy_level=4,
    )
    graph = helper.make_graph(
        [node],
        "block_product",
        [helper.make_tensor_value_info("x", float_type, ["M", depth])],
        [helper.make_tensor_value_info("y", float_type, ["M", columns])],
        [
            numpy_helper.from_array(codes, "codes"),
            numpy_helper.from_array(scale.astype(np.float32), "scale"),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
