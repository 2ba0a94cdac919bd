"""Lowering of canonical graphs to ONNX Runtime's own operators (domain com.microsoft).

TensorScatter + Attention → GroupQueryAttention; products to be quantised → integer products
(products.py). Residual Add and LayerNormalization stay separate: fused as SkipLayerNormalization
they take longer on a CPU (opt-125m, 8 rows: 24 of 290 µs per layer).
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from ..architecture.architecture import canonical_signature
from ..architecture.signature import Signature, tensor_spec
from .attention import replace_attention
from .lowering import CONTRIB_DOMAIN, LoweredEngine
from .products import quantize_products

GROUP_QUERY_ATTENTION = "GroupQueryAttention"
# It appends to the cache at each row's own length and is causal. ``seqlens_k`` is each row's total
# length minus one; ``total_sequence_length`` is that of the longest row.
LENGTHS = (
    tensor_spec(TensorRole.SEQLENS_K, "int32", "B"),
    tensor_spec(TensorRole.TOTAL_SEQUENCE_LENGTH, "int32"),
)
_PLACED = {TensorRole.WRITE_INDICES, TensorRole.ATTENTION_MASK}


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described at the top of this file."""
    lowered = graph.clone()
    lowered.opset_imports[CONTRIB_DOMAIN] = 1
    signature = canonical_signature(kind, model, precision.dtype)
    if kind is EngineKind.LAYER:
        operator = (CONTRIB_DOMAIN, GROUP_QUERY_ATTENTION)
        replace_attention(lowered.graph, model, operator, length_inputs())
        signature = with_lengths(signature)
    quantizers = quantize_products(lowered.graph, kind, model, precision)
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
    others = tuple(spec for spec in signature.inputs[first:] if spec.role not in _PLACED)
    return Signature((*signature.inputs[:first], *LENGTHS, *others), signature.outputs)
