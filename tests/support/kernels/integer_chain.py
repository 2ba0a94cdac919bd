"""The int8 product as nodes of ONNX Runtime's own, as exports without skipdec's kernels have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


def integer_chain_session(
    codes: Array, scale: Array, bias: Array | None = None, relu: bool = False, threads: int = 1
) -> onnxruntime.InferenceSession:
    """x [M, K] → y [M, N] for codes [K, N], scale and bias [N]; 8-bit weights stay exact."""
    float_type = onnx.TensorProto.FLOAT
    constants = {
        "codes": codes,
        "scale": scale,
        "axis": np.array([-1], np.int64),
        "maximum": np.float32(127),
        "zero_point": np.uint8(128),
    }
    nodes = [
        helper.make_node("Abs", ["x"], ["magnitudes"]),
        helper.make_node("ReduceMax", ["magnitudes", "axis"], ["peak"], keepdims=1),
        helper.make_node("Div", ["peak", "maximum"], ["row_scale"]),
        helper.make_node("Shape", ["row_scale"], ["rows"]),
        helper.make_node(
            "ConstantOfShape",
            ["rows"],
            ["zero_points"],
            value=numpy_helper.from_array(np.array([128], np.uint8)),
        ),
        helper.make_node(
            "QuantizeLinear",
            ["x", "row_scale", "zero_points"],
            ["quantized"],
            axis=-1,
            block_size=codes.shape[0],
        ),
        helper.make_node("MatMulInteger", ["quantized", "codes", "zero_point"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=float_type),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "row_scale"], ["product"]),
    ]
    last = "product"
    if bias is not None:
        constants["bias"] = bias
        nodes.append(helper.make_node("Add", [last, "bias"], ["biased"]))
        last = "biased"
    if relu:
        nodes.append(helper.make_node("Relu", [last], ["rectified"]))
        last = "rectified"
    graph = helper.make_graph(
        nodes,
        "integer_chain",
        [helper.make_tensor_value_info("x", float_type, ["M", codes.shape[0]])],
        [helper.make_tensor_value_info(last, float_type, ["M", codes.shape[1]])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
