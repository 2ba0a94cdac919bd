"""Lowering of canonical graphs to ONNX Runtime's own operators (domain com.microsoft).

TensorScatter + Attention → GroupQueryAttention; MatMul nodes → quantised products. In 16-bit
layers, which run on GPUs, norms are fused with residual sums (``residuals``), attention rotates
heads (``attention``), and products add biases (``feed_forward``). Float32 layers keep separate
nodes, because SkipLayerNormalization takes longer on a CPU (opt-125m, 8 rows: 24 of 290 µs per
layer).

int8 (W8A8), for x [..., K], W int8 [K, N], one scale per row of x and per column of W:

    row_scale = max|x| / 127                        [..., 1]
    q         = uint8(round(x / row_scale) + 128)   QuantizeLinear, one block of K per row
    y         = float32(q · W) * scale * row_scale  MatMulInteger with zero point 128

Sums are integers, so a row's result does not depend on the other rows. A row of zeros has
row_scale 0 and q undefined but finite: y is 0. DynamicQuantizeMatMul is avoided because its
per-tensor scale couples rows; ONNX Runtime's optimiser does not rewrite this form to it.

int4 and int8-block use the operator MatMulNBits, which quantises activations itself at
``accuracy_level`` 4 and computes in float32 at 0. It accepts float16 activations and scales, so
that CUDA runs no casts around it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from ..architecture.architecture import canonical_signature, quantized_parameters
from ..architecture.signature import Signature, tensor_spec
from ..quantization.quantize import (
    ACTIVATION_MAXIMUM,
    ACTIVATION_ZERO_POINT,
    BlockQuantizer,
    WeightQuantizer,
    weight_quantizer,
)
from .attention import divide_by_constants, replace_attention, rotate_inside
from .feed_forward import absorb_biases
from .lowering import (
    CONTRIB_DOMAIN,
    LoweredEngine,
    constant,
    products_by_weight,
    quantized_weight,
    replace_value,
)
from .residuals import join_residuals, narrow_norms

GROUP_QUERY_ATTENTION = "GroupQueryAttention"
# GroupQueryAttention appends to the cache at each row's own length and is causal. ``seqlens_k`` is
# each row's total length minus one; ``total_sequence_length`` is that of the longest row.
LENGTHS = (
    tensor_spec(TensorRole.SEQLENS_K, "int32", "B"),
    tensor_spec(TensorRole.TOTAL_SEQUENCE_LENGTH, "int32"),
)
_REPLACED = {TensorRole.WRITE_INDICES, TensorRole.ATTENTION_MASK}  # by these lengths


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described at the top of this file."""
    lowered = graph.clone()
    lowered.opset_imports[CONTRIB_DOMAIN] = 1
    signature = canonical_signature(kind, model, precision.dtype)
    if kind is EngineKind.LAYER:
        operator = (CONTRIB_DOMAIN, GROUP_QUERY_ATTENTION)
        divide_by_constants(lowered.graph)
        narrow_norms(lowered.graph)
        place = partial(rotate_inside, lowered.graph, model)
        replace_attention(lowered.graph, model, operator, length_inputs(), place)
        signature = with_lengths(signature)
        join_residuals(lowered.graph)
    quantizers = quantize_products(lowered.graph, kind, model, precision)
    absorb_biases(lowered.graph)
    RemoveUnusedNodesPass()(lowered)
    return LoweredEngine(lowered, signature, precision, quantizers)


def length_inputs() -> list[ir.Value]:
    """Return GroupQueryAttention's length inputs as new inputs of a graph."""
    return [
        ir.Value(name=spec.name, shape=ir.Shape(spec.shape), type=ir.TensorType(ir.DataType.INT32))
        for spec in LENGTHS
    ]


def with_lengths(signature: Signature) -> Signature:
    """Return ``signature`` with the length inputs in place of write_indices and mask."""
    roles = [spec.role for spec in signature.inputs]
    first = roles.index(TensorRole.WRITE_INDICES)
    others = tuple(spec for spec in signature.inputs[first:] if spec.role not in _REPLACED)
    return Signature((*signature.inputs[:first], *LENGTHS, *others), signature.outputs)


def quantize_products(
    graph: ir.Graph, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> dict[str, WeightQuantizer]:
    """Quantise the products of an engine of ``kind`` in place, as ``precision`` specifies.

    Returns the quantiser of each parameter whose product was replaced. In a float16 engine, int8
    products compute in float32 with casts around them; products of blocks take float16.
    """
    quantizer = weight_quantizer(kind, precision)
    if quantizer is None:
        return {}
    writer = ProductWriter(graph, kind, precision.accuracy_level)
    products = products_by_weight(graph)
    names = quantized_parameters(kind, model)
    for name in names:
        writer.replace(products[name], quantizer)
    return dict.fromkeys(names, quantizer)


class ProductWriter:
    """Writes quantised products, which share constants, into a graph one after another."""

    def __init__(self, graph: ir.Graph, kind: EngineKind, accuracy_level: int | None) -> None:
        self.graph = graph
        self.accuracy_level = accuracy_level
        # Scaling columns inside the product is faster if [R, V] exceeds the CPU caches, but slower
        # for one row of a layer; the result is the same.
        self.scales_inside = kind is EngineKind.HEAD
        self._position: ir.Node | None = None
        self._zero_points: ir.Value | None = None

    def replace(self, product: ir.Node, quantizer: WeightQuantizer) -> None:
        """Replace ``product``, a MatMul whose second input is a weight's initialiser."""
        inputs = product.inputs[0]
        assert inputs is not None
        # MatMulNBits takes float16 itself, if its scales are float16
        is_cast = inputs.dtype == ir.DataType.FLOAT16 and not isinstance(quantizer, BlockQuantizer)
        self._position = product
        if is_cast:
            inputs = self._node("Cast", [inputs], to=ir.DataType.FLOAT)
        _, shape, weight = quantized_weight(self.graph, product, quantizer)
        if isinstance(quantizer, BlockQuantizer):
            result = self._block_product(inputs, weight, quantizer, shape)
        else:
            result = self._integer_product(inputs, weight, shape[0])
        if is_cast:
            result = self._node("Cast", [result], to=ir.DataType.FLOAT16)
        replace_value(product.outputs[0], result)
        self.graph.remove(product, safe=True)

    def _block_product(
        self,
        inputs: ir.Value,
        weight: dict[str, ir.Value],
        quantizer: BlockQuantizer,
        shape: tuple[int, int],
    ) -> ir.Value:
        in_size, out_size = shape
        return self._node(
            "MatMulNBits",
            [inputs, weight["quantized"], weight["scale"]],
            domain=CONTRIB_DOMAIN,
            K=in_size,
            N=out_size,
            bits=quantizer.bits,
            block_size=quantizer.block_size,
            accuracy_level=self.accuracy_level,
        )

    def _integer_product(
        self, inputs: ir.Value, weight: dict[str, ir.Value], in_size: int
    ) -> ir.Value:
        row_scale = self._row_scale(inputs)  # [..., 1]
        quantized = self._node(
            "QuantizeLinear",
            [inputs, row_scale, self._zero_points_like(row_scale)],
            axis=-1,
            block_size=in_size,
        )
        zero_point = self._constant("activation_zero_point", np.uint8(ACTIVATION_ZERO_POINT))
        if self.scales_inside:
            one = self._constant("one", np.float32(1))
            operands = [quantized, weight["quantized"], one, weight["scale"], zero_point]
            scaled = self._node("MatMulIntegerToFloat", operands, domain=CONTRIB_DOMAIN)
        else:
            sums = self._node("MatMulInteger", [quantized, weight["quantized"], zero_point])
            sums = self._node("Cast", [sums], to=ir.DataType.FLOAT)
            scaled = self._node("Mul", [sums, weight["scale"]])
        return self._node("Mul", [scaled, row_scale])

    def _row_scale(self, inputs: ir.Value) -> ir.Value:
        """Return max|x| / 127 of each row; the output of a Relu needs no Abs."""
        producer = inputs.producer()
        if producer is None or producer.op_type != "Relu":
            inputs = self._node("Abs", [inputs])
        last_axis = self._constant("last_axis", np.array([-1], np.int64))
        peak = self._node("ReduceMax", [inputs, last_axis], keepdims=1)
        # Multiplying by 1/127 and dividing by 127 differ in the last bit; references divide.
        return self._node("Div", [peak, self._constant("maximum", np.float32(ACTIVATION_MAXIMUM))])

    def _zero_points_like(self, row_scale: ir.Value) -> ir.Value:
        """Return the zero point once per row, as QuantizeLinear requires; products share it."""
        if self._zero_points is None:
            value = ir.tensor(np.array([ACTIVATION_ZERO_POINT], np.uint8))
            self._zero_points = self._node(
                "ConstantOfShape", [self._node("Shape", [row_scale])], value=value
            )
        return self._zero_points

    def _constant(self, name: str, value: np.generic | np.ndarray) -> ir.Value:
        return constant(self.graph, name, value)

    def _node(
        self,
        op_type: str,
        inputs: list[ir.Value],
        domain: str = "",
        **attributes: int | ir.TensorProtocol | None,
    ) -> ir.Value:
        """Insert a node with one output before the product that is being replaced."""
        node = ir.node(op_type, inputs, attributes, domain=domain)
        assert self._position is not None
        self.graph.insert_before(self._position, node)
        return node.outputs[0]
