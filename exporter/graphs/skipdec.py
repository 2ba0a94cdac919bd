"""Lowering of canonical graphs, traced in float32, to skipdec's own operators (domain skipdec).

TensorScatter + Attention → Attention, placed by the canonical write_indices; products with packed
weights → one operator fused with what follows; norms → LayerNorm and RmsNorm. Other 16-bit matrices
are stored as such, with a Cast. Activations are float32, so everything else runs on ONNX Runtime's
operators as traced.

    MatMul (+ Add bias) (+ Relu | Gelu) (+ Add residual)  →  QuantizedLinear, HalfLinear, …

Inputs of a fused product, in this order: the activations, the tensors of the packed weight, and an
optional bias and residual. Its attribute ``activation`` is an index into ``ACTIVATIONS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...engines.kernels.library import DOMAIN
from ...engines.manifest import (
    EngineKind,
    KVType,
    ModelSpec,
    PrecisionSpec,
    TensorRole,
    TensorSpec,
    kv_width,
)
from ..architecture.architecture import (
    canonical_signature,
    engine_parameters,
    quantized_parameters,
)
from ..architecture.signature import Signature
from ..quantization.packed import PackedQuantizer, weight_quantizer
from ..quantization.quantize import WeightQuantizer
from .attention import replace_attention
from .lowering import (
    CONTRIB_DOMAIN,
    LoweredEngine,
    initializer,
    products_by_weight,
    replace_value,
)
from .norms import replace_norms
from .onnxruntime import quantize_products

ATTENTION = "Attention"
ACTIVATIONS = ("", "Relu", "Gelu")  # by the attribute's value
ACTIVATION = "activation"
CACHES = frozenset(
    {
        TensorRole.PAST_KEY,
        TensorRole.PAST_VALUE,
        TensorRole.PRESENT_KEY,
        TensorRole.PRESENT_VALUE,
    }
)


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described at the top of this file."""
    lowered = graph.clone()
    lowered.opset_imports[DOMAIN] = lowered.opset_imports[CONTRIB_DOMAIN] = 1
    signature = canonical_signature(kind, model, "float32")
    if kind is EngineKind.LAYER:
        places = next(
            value for value in lowered.graph.inputs if value.name == TensorRole.WRITE_INDICES
        )
        replace_attention(lowered.graph, model, (DOMAIN, ATTENTION), [places])
        signature = _with_cache(signature, precision.kv_dtype or precision.dtype, model)
        _declare_caches(lowered.graph, signature)
    replace_norms(lowered.graph)
    quantizer = weight_quantizer(kind, precision)
    if isinstance(quantizer, PackedQuantizer):
        products = products_by_weight(lowered.graph)
        names = quantized_parameters(kind, model)
        for name in names:
            fuse_product(lowered.graph, products[name], quantizer)
        quantizers: dict[str, WeightQuantizer] = dict.fromkeys(names, quantizer)
    else:
        quantizers = quantize_products(lowered.graph, kind, model, precision)
    _narrow(lowered.graph, _narrow_matrices(kind, model, precision), precision)
    RemoveUnusedNodesPass()(lowered)
    return LoweredEngine(lowered, signature, precision, quantizers)


def _with_cache(signature: Signature, dtype: KVType, model: ModelSpec) -> Signature:
    """Return ``signature`` without a mask and with caches of ``dtype``."""

    def with_dtype(spec: TensorSpec) -> TensorSpec:
        if spec.role not in CACHES:
            return spec
        shape = (*spec.shape[:-1], kv_width(dtype, model))
        return spec.model_copy(update={"dtype": dtype, "shape": shape})

    inputs = (spec for spec in signature.inputs if spec.role is not TensorRole.ATTENTION_MASK)
    return Signature(tuple(map(with_dtype, inputs)), tuple(map(with_dtype, signature.outputs)))


def _declare_caches(graph: ir.Graph, signature: Signature) -> None:
    specs = {spec.name: spec for spec in (*signature.inputs, *signature.outputs)}
    for value in (*graph.inputs, *graph.outputs):
        assert value.name is not None
        if (spec := specs[value.name]).role in CACHES:
            value.type = ir.TensorType(_element_type(spec.dtype))
            value.shape = ir.Shape(spec.shape)


def _narrow_matrices(kind: EngineKind, model: ModelSpec, precision: PrecisionSpec) -> Iterator[str]:
    """Yield the 16-bit matrices that no packed product uses: tables and projections."""
    layer_index = 0 if kind is EngineKind.LAYER else None
    for parameter in engine_parameters(kind, model, layer_index):
        if not parameter.is_product and parameter.float_dtype(precision.dtype, True) != "float32":
            yield parameter.name


def _narrow(graph: ir.Graph, names: Iterator[str], precision: PrecisionSpec) -> None:
    """Store the matrices ``names`` in the bundle's type and cast them, or their rows, on use."""
    for name in names:
        matrix = graph.initializers[name]
        matrix.type = ir.TensorType(_element_type(precision.dtype))
        for use in list(matrix.uses()):
            node = use.node
            if node.op_type == "Gather" and use.idx == 0:
                rows = node.outputs[0]
                cast = ir.node("Cast", [None], {"to": ir.DataType.FLOAT})
                replace_value(rows, cast.outputs[0])  # the rows may be a graph output
                cast.replace_input_with(0, rows)
                rows.name, rows.type = f"{name}.rows", matrix.type
                graph.insert_after(node, cast)
            else:
                cast = ir.node("Cast", [matrix], {"to": ir.DataType.FLOAT})
                node.replace_input_with(use.idx, cast.outputs[0])
                graph.insert_before(node, cast)


def _element_type(dtype: str) -> ir.DataType:
    return ir.DataType[dtype.upper().replace("FLOAT32", "FLOAT")]


@dataclass
class _Chain:
    """A product and the following nodes that one operator can compute."""

    nodes: list[ir.Node]
    bias: ir.Value | None = None
    activation: int = 0
    residual: ir.Value | None = None

    @property
    def last(self) -> ir.Node:
        """Return the node that produces the result."""
        return self.nodes[-1]


def fuse_product(graph: ir.Graph, product: ir.Node, quantizer: PackedQuantizer) -> None:
    """Replace ``product``, a MatMul with a weight initialiser [K, N], and what can be fused."""
    inputs, weight = product.inputs
    assert weight is not None
    assert weight.name is not None
    assert weight.shape is not None
    in_size, out_size = (int(size) for size in weight.shape.numpy())
    shape = (in_size, out_size)
    tensors = [
        initializer(graph, f"{weight.name}.{suffix}", dtype, size)
        for suffix, (dtype, size) in quantizer.layout(shape).items()
    ]
    chain = _chain(graph, product)
    operands = [inputs, *tensors, chain.bias, chain.residual]
    while operands[-1] is None:
        operands.pop()
    attributes = quantizer.attributes(shape) | {ACTIVATION: chain.activation}
    node = ir.node(quantizer.operator, operands, attributes, domain=DOMAIN, name=weight.name)
    graph.insert_before(chain.last, node)
    replace_value(chain.last.outputs[0], node.outputs[0])
    graph.remove(reversed(chain.nodes), safe=True)
    del graph.initializers[weight.name]


def _chain(graph: ir.Graph, product: ir.Node) -> _Chain:
    """Return the nodes after ``product`` that can be fused; each must have a single use."""
    chain = _Chain([product])
    following = _only_use(graph, product)
    if (bias := _other_operand(following, chain.last)) is not None and _is_vector(bias):
        following = _extend(graph, chain, following)
        chain.bias = bias
    if following is not None and following.op_type in ACTIVATIONS[1:] and _is_exact(following):
        chain.activation = ACTIVATIONS.index(following.op_type)
        following = _extend(graph, chain, following)
    other = _other_operand(following, chain.last)
    if other is not None and not other.is_initializer():
        _extend(graph, chain, following)
        chain.residual = other
    return chain


def _extend(graph: ir.Graph, chain: _Chain, node: ir.Node | None) -> ir.Node | None:
    """Append ``node`` to ``chain``; return its only user, if any."""
    assert node is not None
    chain.nodes.append(node)
    return _only_use(graph, node)


def _only_use(graph: ir.Graph, node: ir.Node) -> ir.Node | None:
    """Return the node that reads the output of ``node``, if there is exactly one use."""
    (value,) = node.outputs
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and value not in graph.outputs else None


def _other_operand(node: ir.Node | None, known: ir.Node) -> ir.Value | None:
    """Return the value that an Add adds to the result of ``known``, if ``node`` is such an Add."""
    if node is None or node.op_type != "Add":
        return None
    others = [value for value in node.inputs if value is not known.outputs[0]]
    return others[0] if len(others) == 1 else None


def _is_vector(value: ir.Value) -> bool:
    return value.is_initializer() and value.shape is not None and len(value.shape) == 1


def _is_exact(node: ir.Node) -> bool:
    """Return True for an exact activation: GELU by erf, not by tanh."""
    approximate = node.attributes.get("approximate")
    return approximate is None or approximate.as_string() == "none"
