"""Rewriting of skipdec's operators to ONNX Runtime's, for machines without the library.

    QuantizedLinear → QuantizeLinear, MatMulInteger and scales, then bias, activation, residual
    BlockLinear4, 8 → MatMulNBits, likewise
    HalfLinear      → MatMul, its weight in float32
    gated products  → those of gate and other in one, then Split, Sigmoid, Mul, Mul
    Attention       → RMSNormalization, RotaryEmbedding (optional), GroupQueryAttention
    LayerNorm       → LayerNormalization
    RmsNorm         → RMSNormalization

Caches and 16-bit matrices become float32: ONNX Runtime's CPU products support nothing else.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...engines.kernels.library import DOMAIN
from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from ..architecture.architecture import canonical_signature, engine_parameters
from ..quantization.packed import PackedQuantizer, weight_quantizer
from ..quantization.quantize import WeightQuantizer
from .attention import attention_node
from .fusion import ACTIVATION, ACTIVATIONS
from .gating import gate_nodes
from .lowering import CONTRIB_DOMAIN, LoweredEngine, initializer, replace_value
from .norms import restore_norms
from .onnxruntime import GROUP_QUERY_ATTENTION, ProductWriter, length_inputs, with_lengths
from .placing import restore_placing
from .skipdec import ATTENTION, CACHES

_CACHES = slice(3, 5)  # inputs of Attention: past_key and past_value


def expanded_precision(precision: PrecisionSpec) -> PrecisionSpec:
    """Return the number formats that ``expand`` produces from a bundle of ``precision``."""
    changes = {"dtype": "float32", "kv_dtype": None, "table_dtype": None, "int8_blocks": None}
    return precision.model_copy(update=changes)


def expand(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a copy of an engine's ``graph``, whose weights have no data, for ONNX Runtime.

    ``precision`` is that of its bundle. The new weights are initialisers without data, in the
    quantisers' ``plain`` forms.
    """
    expanded = graph.clone()
    expanded.opset_imports.pop(DOMAIN, None)
    expanded.opset_imports[CONTRIB_DOMAIN] = 1
    restore_norms(expanded.graph)
    quantizers = _Expansion(expanded.graph, kind, model, precision).run()
    signature = canonical_signature(kind, model, "float32")
    if kind is EngineKind.LAYER:
        _expand_attention(expanded.graph, model)
        signature = with_lengths(signature)
    _widen(expanded.graph)
    RemoveUnusedNodesPass()(expanded)
    assert all(node.domain != DOMAIN for node in expanded.graph), kind
    return LoweredEngine(expanded, signature, expanded_precision(precision), quantizers)


class _Expansion:
    """Replaces each product by ONNX Runtime's nodes."""

    def __init__(
        self, graph: ir.Graph, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
    ) -> None:
        self._graph = graph
        self._quantizer = weight_quantizer(kind, precision)
        self._writer = ProductWriter(graph, kind, precision.accuracy_level)
        layer_index = 0 if kind is EngineKind.LAYER else None
        self._products = {
            parameter.name: parameter
            for parameter in engine_parameters(kind, model, layer_index)
            if parameter.is_product
        }

    def run(self) -> dict[str, WeightQuantizer]:
        """Expand all products; return the quantiser of each weight that stays quantised."""
        quantizer = self._quantizer
        if not isinstance(quantizer, PackedQuantizer):
            return {} if quantizer is None else dict.fromkeys(self._products, quantizer)
        for node in list(self._graph):
            if node.domain == DOMAIN and node.op_type == quantizer.operator:
                self._expand(node, quantizer)
        return {} if quantizer.plain is None else dict.fromkeys(self._products, quantizer.plain)

    def _expand(self, node: ir.Node, packing: PackedQuantizer) -> None:
        """Replace a node by the product and the operations that were fused with it."""
        inputs, packed = node.inputs[:2]
        assert inputs is not None
        assert packed is not None
        assert packed.name is not None
        weight = packed.name.rpartition(".")[0]
        parameter = self._products[weight]
        quantizer = packing.fitting(parameter)
        in_size, out_size = parameter.shape
        tensors = quantizer.layout((in_size, out_size))
        bias, residual = (*node.inputs[1 + len(tensors) :], None, None)[:2]
        if quantizer.plain is None:
            matrix = initializer(self._graph, weight, "float32", (in_size, out_size))
            result = self._insert(node, "MatMul", inputs, matrix)
        else:
            shape = (in_size, out_size)
            result = self._writer.write(node, inputs, weight, shape, quantizer.plain)
        if bias is not None:
            result = self._insert(node, "Add", result, bias)
        if quantizer.is_gated:
            gate = gate_nodes(result)
            self._graph.insert_before(node, gate)
            result = gate[-1].outputs[0]
        elif activation := node.attributes[ACTIVATION].as_int():
            result = self._insert(node, ACTIVATIONS[activation], result)
        if residual is not None:
            result = self._insert(node, "Add", residual, result)
        replace_value(node.outputs[0], result)
        packed_tensors = [value for value in node.inputs[1 : 1 + len(tensors)] if value is not None]
        self._graph.remove(node, safe=True)
        for value in packed_tensors:
            assert value.name is not None
            if self._graph.initializers[value.name] is value:  # the name was not reused
                del self._graph.initializers[value.name]

    def _insert(self, position: ir.Node, op_type: str, *inputs: ir.Value) -> ir.Value:
        node = ir.node(op_type, inputs)
        self._graph.insert_before(position, node)
        return node.outputs[0]


def _expand_attention(graph: ir.Graph, model: ModelSpec) -> None:
    (node,) = (each for each in graph if each.domain == DOMAIN and each.op_type == ATTENTION)
    lengths = length_inputs()
    heads = restore_placing(graph, node, model)
    replacement = attention_node(
        GROUP_QUERY_ATTENTION, CONTRIB_DOMAIN, model, [*heads, *node.inputs[_CACHES], *lengths]
    )
    graph.insert_before(node, replacement)
    for old, new in zip(node.outputs, replacement.outputs, strict=True):
        replace_value(old, new)
    graph.remove(node, safe=True)
    place = next(
        index for index, value in enumerate(graph.inputs) if value.name == TensorRole.WRITE_INDICES
    )
    graph.inputs[place : place + 1] = lengths
    for value in (*graph.inputs, *graph.outputs):
        if value.name in CACHES:
            assert value.shape is not None
            value.type = ir.TensorType(ir.DataType.FLOAT)
            value.shape = ir.Shape([*value.shape[:-1], model.head_dim])


def _widen(graph: ir.Graph) -> None:
    """Make 16-bit matrices float32, and remove the casts that they needed."""
    narrow = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    for value in graph.initializers.values():
        if value.dtype in narrow and value.shape is not None and len(value.shape) == 2:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "Cast" or source is None:
            continue
        maker = source.producer()
        table = source if maker is None else maker.inputs[0]
        if maker is not None and maker.op_type != "Gather":
            continue
        if table is not None and table.is_initializer() and table.const_value is None:
            if maker is None:
                node.outputs[0].replace_all_uses_with(source)
            else:
                replace_value(node.outputs[0], source)  # the rows may be a graph output
            source.type = ir.TensorType(ir.DataType.FLOAT)
            graph.remove(node, safe=True)
