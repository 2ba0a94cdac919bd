"""The products that ONNX Runtime's own operators compute, as graphs to compare kernels with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from skipdec.engines.backends.ort import session_options
from skipdec.engines.kernels.library import DOMAIN, require_library

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subgraph:
    """Nodes that compute one value from the graph's inputs; all names begin with its own."""

    nodes: Sequence[onnx.NodeProto]
    constants: Mapping[str, Array]
    output: str


def integer_chain(
    name: str, codes: Array, scale: Array, bias: Array | None = None, relu: bool = False
) -> Subgraph:
    """Multiply x [..., K] → [..., N] by codes [K, N] and scale [N], as exports do."""
    constants: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []

    def constant(suffix: str, value: Array | np.generic) -> str:
        constants[f"{name}.{suffix}"] = np.asarray(value)
        return f"{name}.{suffix}"

    def node(operator: str, *inputs: str, **attributes: int | onnx.TensorProto) -> str:
        made = helper.make_node(operator, inputs, [f"{name}.{len(nodes)}"])
        made.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        nodes.append(made)
        output: str = made.output[0]
        return output

    peak = node(
        "ReduceMax", node("Abs", "x"), constant("axis", np.array([-1], np.int64)), keepdims=1
    )
    row_scale = node("Div", peak, constant("maximum", np.float32(127)))
    zero = numpy_helper.from_array(np.array([128], np.uint8))
    zeros = node("ConstantOfShape", node("Shape", row_scale), value=zero)
    quantized = node("QuantizeLinear", "x", row_scale, zeros, axis=-1, block_size=len(codes))
    zero_point = constant("zero_point", np.uint8(128))
    sums = node("MatMulInteger", quantized, constant("codes", codes), zero_point)
    scaled = node("Mul", node("Cast", sums, to=onnx.TensorProto.FLOAT), constant("scale", scale))
    output = node("Mul", scaled, row_scale)
    if bias is not None:
        output = node("Add", output, constant("bias", bias))
    if relu:
        output = node("Relu", output)
    return Subgraph(nodes, constants, output)


def matmul_nbits(name: str, codes: Array, scale: Array, depth: int, bits: int) -> Subgraph:
    """Multiply x in blocks: codes [N, blocks, bytes of a block], scale [N, blocks]."""
    constants = {f"{name}.codes": codes, f"{name}.scale": scale.astype(np.float32)}
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        [name],
        domain="com.microsoft",
        K=depth,
        N=len(codes),
        bits=bits,
        block_size=8 // bits * codes.shape[2],
        accuracy_level=4,
    )
    return Subgraph([node], constants, name)


def session_of(
    parts: Sequence[Subgraph], threads: int | None = None
) -> onnxruntime.InferenceSession:
    """Open a session that runs ``parts`` one after another on one float32 x [M, K]."""

    def value(name: str, shape: Sequence[str] | None = None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node for part in parts for node in part.nodes],
        "parts",
        [value("x", ["M", "K"])],
        [value(part.output) for part in parts],
        [
            numpy_helper.from_array(array, name)
            for part in parts
            for name, array in part.constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    opsets.append(helper.make_opsetid("com.microsoft", 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = session_options(threads)
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact without VNNI
    options.register_custom_ops_library(str(require_library("the graph").path))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
