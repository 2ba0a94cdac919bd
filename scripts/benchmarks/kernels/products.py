"""Products as graph nodes: skipdec's operators and ONNX Runtime's equivalents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from skipdec.engines.backends.ort import session_options
from skipdec.engines.kernels.library import DOMAIN, require_library
from skipdec.engines.kernels.packing import pack_half, pack_int4, pack_int8, pack_int8_blocks

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subgraph:
    """Nodes that compute one value from the graph's inputs; all names begin with its own."""

    nodes: Sequence[onnx.NodeProto]
    constants: Mapping[str, Array]
    output: str


def quantized_linear(name: str, codes: Array, scale: Array) -> Subgraph:
    """Multiply x [..., K] → [..., N] by QuantizedLinear, with codes [K, N] and scale [N]."""
    weight, offset = pack_int8(codes)
    constants = {f"{name}.weight": weight, f"{name}.scale": scale, f"{name}.offset": offset}
    node = helper.make_node("QuantizedLinear", ["x", *constants], [name], domain=DOMAIN)
    return Subgraph([node], constants, name)


def integer_chain(
    name: str, codes: Array, scale: Array, bias: Array | None = None, relu: bool = False
) -> Subgraph:
    """Build the same from ONNX Runtime's own operators, as exports do."""
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


def half_linear(name: str, weight: Array) -> Subgraph:
    """Multiply x [..., K] → [..., N] by HalfLinear, with float16 or bfloat16 weights [K, N]."""
    packed = f"{name}.weight"
    node = helper.make_node(
        "HalfLinear", ["x", packed], [name], domain=DOMAIN, N=weight.shape[1], activation=0
    )
    return Subgraph([node], {packed: pack_half(weight)}, name)


def matrix_product(name: str, weight: Array) -> Subgraph:
    """Multiply x [..., K] → [..., N] in float32, with weights [K, N]."""
    node = helper.make_node("MatMul", ["x", f"{name}.weight"], [name])
    return Subgraph([node], {f"{name}.weight": weight}, name)


def block_linear(name: str, codes: Array, scale: Array, bits: int) -> Subgraph:
    """Multiply x [..., K] → [..., N] in blocks, with ``matmul_nbits``'s codes and scales."""
    pack = pack_int4 if bits == 4 else pack_int8_blocks
    weight, packed_scale = pack(codes, scale.astype(ml_dtypes.bfloat16))
    constants = {f"{name}.weight": weight, f"{name}.scale": packed_scale}
    node = helper.make_node(
        f"BlockLinear{bits}",
        ["x", *constants],
        [name],
        domain=DOMAIN,
        N=len(codes),
        block_size=8 // bits * codes.shape[2],
    )
    return Subgraph([node], constants, name)


def matmul_nbits(name: str, codes: Array, scale: Array, depth: int, bits: int) -> Subgraph:
    """Build the same for ONNX Runtime: codes [N, blocks, bytes of a block], scale [N, blocks]."""
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
