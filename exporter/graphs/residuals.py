"""Norms of 16-bit graphs in one kernel each, with the residual sum before them.

    Cast to float32 → norm → Cast back                     →  norm in 16 bits
    Add residual, Add bias (optional) → norm in 16 bits    →  Skip(Simplified)LayerNormalization

Both compute in float32 inside. ONNX Runtime's CUDA provider has kernels of all three norms; its CPU
provider computes what lies between two products in float32, so nothing is rounded there that was
not before, except the first norm's result. Weights of norms stay float32 in the file: the casts
after them disappear when a session folds constants.
"""

from __future__ import annotations

import onnx_ir as ir

from .lowering import CONTRIB_DOMAIN, only_use, replace_value

NORMS = {
    "LayerNormalization": "SkipLayerNormalization",
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
}
"""Standard norms, and ONNX Runtime's with a residual sum before them."""

_DEFAULT_EPSILON = 1e-5  # of both standard operators


def narrow_norms(graph: ir.Graph) -> None:
    """Let norms between casts from and to 16 bits read and write 16 bits, in place."""
    for norm in [node for node in graph if node.op_type in NORMS]:
        before, after = norm.inputs[0].producer() if norm.inputs[0] else None, only_use(graph, norm)
        if before is None or after is None or {before.op_type, after.op_type} != {"Cast"}:
            continue
        (narrow,), result = before.inputs, after.outputs[0]
        assert narrow is not None
        assert result.dtype is not None
        weights = [ir.node("Cast", [each], {"to": result.dtype}) for each in norm.inputs[1:]]
        graph.insert_before(norm, weights)
        norm.replace_input_with(0, narrow)
        for index, cast in enumerate(weights, 1):
            norm.replace_input_with(index, cast.outputs[0])
        replace_value(result, norm.outputs[0])
        graph.remove(after, safe=True)


def join_residuals(graph: ir.Graph) -> None:
    """Compute 16-bit residual sums of hidden states together with the norms after them."""
    for norm in [node for node in graph if node.op_type in NORMS]:
        summed = norm.inputs[0]
        add = None if summed is None else summed.producer()
        if add is not None and add.op_type == "Add" and add.outputs[0].dtype != ir.DataType.FLOAT:
            _join(graph, add, norm)


def _join(graph: ir.Graph, add: ir.Node, norm: ir.Node) -> None:
    residual, branch = add.inputs  # in the order of canonical layers
    bias, biased = None, None if branch is None else branch.producer()
    if biased is not None and biased.op_type == "Add" and only_use(graph, biased) is add:
        branch, bias = biased.inputs
    weights = list(norm.inputs[1:])
    if norm.op_type == "LayerNormalization" and len(weights) == 1:
        weights.append(None)  # this norm has no bias
    joint = ir.node(
        NORMS[norm.op_type],
        [branch, residual, *weights, bias],
        {"epsilon": norm.attributes.get_float("epsilon", _DEFAULT_EPSILON)},
        domain=CONTRIB_DOMAIN,
        num_outputs=4,
    )
    normalised, mean, deviation, total = joint.outputs
    mean.name = deviation.name = ""  # not computed
    graph.insert_before(norm, joint)
    replace_value(norm.outputs[0], normalised)
    graph.remove(norm, safe=True)
    replace_value(add.outputs[0], total)
    graph.remove([add] if biased is None or bias is None else [add, biased], safe=True)
