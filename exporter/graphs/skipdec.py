"""Lowering of canonical graphs, traced in float32, to skipdec's own operators (domain skipdec).

TensorScatter + Attention, with norms and rotation of heads → Attention, which takes positions from
the canonical write_indices, so that layers need no position_ids; products with packed weights → one
operator fused with the nodes after it (``fusion``); norms → LayerNorm and RmsNorm. Other 16-bit
matrices stay 16-bit in the file, followed by a Cast. Activations are float32, so everything else
runs on ONNX Runtime's operators as traced.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...engines.kernels.library import DOMAIN
from ...engines.manifest import (
    PAST_OF,
    EngineKind,
    FloatType,
    KVType,
    ModelSpec,
    PrecisionSpec,
    TensorRole,
    TensorSpec,
    kv_width,
)
from ..architecture.architecture import canonical_signature, kind_parameters
from ..architecture.signature import Signature
from ..quantization.packed import PackedQuantizer, weight_quantizer
from ..quantization.quantize import WeightQuantizer
from .attention import Heads, replace_attention
from .fusion import fuse_product
from .head_transforms import take_head_transform
from .lowering import (
    CONTRIB_DOMAIN,
    LoweredEngine,
    element_type,
    epsilon_of,
    products_by_weight,
    replace_node,
    replace_value,
)
from .onnxruntime import quantize_products

ATTENTION = "Attention"
NORMS = {"LayerNormalization": "LayerNorm", "RMSNormalization": "RmsNorm"}  # standard → skipdec's
CACHES = frozenset((*PAST_OF, *PAST_OF.values()))


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described at the top of this file."""
    lowered = graph.clone()
    lowered.opset_imports[DOMAIN] = lowered.opset_imports[CONTRIB_DOMAIN] = 1
    signature = canonical_signature(kind, model, "float32")
    if kind is EngineKind.LAYER:
        positions = next(
            value for value in lowered.graph.inputs if value.name == TensorRole.WRITE_INDICES
        )
        operator = (DOMAIN, ATTENTION)
        replace_attention(lowered.graph, model, operator, [positions], _placed)
        RemoveUnusedNodesPass()(lowered)
        signature = _without_positions(lowered.graph, signature)
        signature = _with_cache(signature, precision.kv_dtype or precision.dtype, model)
        _declare_caches(lowered.graph, signature)
    replace_norms(lowered.graph)
    quantizer = weight_quantizer(kind, precision)
    if isinstance(quantizer, PackedQuantizer):
        products = products_by_weight(lowered.graph)
        quantizers: dict[str, WeightQuantizer] = {}
        for parameter in kind_parameters(kind, model):
            if not parameter.is_product:
                continue
            fitting = quantizer.fitting(parameter)
            fuse_product(lowered.graph, products[parameter.name], fitting)
            quantizers[parameter.name] = fitting
    else:
        quantizers = quantize_products(lowered.graph, kind, model, precision)
    _narrow(lowered.graph, _narrow_matrices(kind, model, precision))
    RemoveUnusedNodesPass()(lowered)
    return LoweredEngine(lowered, signature, precision, quantizers)


def replace_norms(graph: ir.Graph) -> None:
    """Replace every float32 norm over the last axis in place.

    skipdec's norms give the same bits on every processor, unlike ONNX Runtime's.
    """
    for node in [node for node in graph if node.domain == "" and node.op_type in NORMS]:
        axis = node.attributes.get_int("axis", -1)
        assert axis == -1, axis
        epsilon = {"epsilon": epsilon_of(node)}
        own = ir.node(NORMS[node.op_type], node.inputs, epsilon, domain=DOMAIN, name=node.name)
        replace_node(graph, node, own)


def _placed(query: ir.Value, key: ir.Value) -> Heads:
    """Make Attention normalise and rotate heads."""
    query, key, transform = take_head_transform(query, key)
    return query, key, transform.operands, transform.attributes


def _without_positions(graph: ir.Graph, signature: Signature) -> Signature:
    """Drop the input position_ids from ``graph`` and its signature if nothing reads it."""
    role = TensorRole.POSITION_IDS
    unused = [value for value in graph.inputs if value.name == role and not value.uses()]
    for value in unused:
        graph.inputs.remove(value)
    inputs = (spec for spec in signature.inputs if not (unused and spec.role is role))
    return Signature(tuple(inputs), signature.outputs)


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
            value.type = ir.TensorType(element_type(spec.dtype))
            value.shape = ir.Shape(spec.shape)


def _narrow_matrices(
    kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> Iterator[tuple[str, FloatType]]:
    """Yield name and type of each 16-bit matrix outside packed products: tables, projections."""
    for parameter in kind_parameters(kind, model):
        dtype = parameter.float_dtype(precision, True)
        if not parameter.is_product and dtype != "float32":
            yield parameter.name, dtype


def _narrow(graph: ir.Graph, matrices: Iterator[tuple[str, FloatType]]) -> None:
    """Store ``matrices``, given by name and type, in 16 bits; cast them, or their rows, on use."""
    for name, dtype in matrices:
        matrix = graph.initializers[name]
        matrix.type = ir.TensorType(element_type(dtype))
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
