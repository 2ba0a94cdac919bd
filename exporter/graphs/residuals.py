"""Fuses each norm of a 16-bit graph, with the residual sum before it, into one kernel.

    Cast to float32 → norm → Cast back                     →  norm in 16 bits
    Add residual, Add bias (optional) → norm in 16 bits    →  Skip(Simplified)LayerNormalization
    a layer's first norm, of its input x                   →  the same of x + x, with 4 epsilon

All compute in float32 inside, and the last rule does not change a norm's bits, because scaling by
2 is exact. (On an H200 the joint norm takes 1.5 µs and LayerNormalization 4.2 µs, which makes a
step of opt-1.3b 5 % faster.) ONNX Runtime's CUDA provider has kernels of all three norms. Its CPU
provider computes everything between two products in float32, so there the fusion adds no rounding
except that of the first norm's result. Weights of norms stay float32 in the file; the casts after
them disappear when a session folds constants.
"""

from __future__ import annotations

import onnx_ir as ir

from .lowering import CONTRIB_DOMAIN, epsilon_of, only_use, replace_value

NORMS = {
    "LayerNormalization": "SkipLayerNormalization",
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
}
"""Standard norms, and ONNX Runtime's that include the residual sum."""


def narrow_norms(graph: ir.Graph) -> None:
    """Make norms between casts from and to 16 bits read and write 16 bits, in place."""
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
    """Fuse 16-bit residual sums of hidden states with the norms after them.

    For a norm of the layer's input, that input is the residual, too.
    """
    for norm in [node for node in graph if node.op_type in NORMS]:
        summed = norm.inputs[0]
        if summed is None or summed.dtype == ir.DataType.FLOAT:
            continue
        add = summed.producer()
        if summed.is_graph_input():
            _insert_joint(norm, summed, summed, None, epsilon_scale=4)
            graph.remove(norm, safe=True)
        elif add is not None and add.op_type == "Add":
            _join(graph, add, norm)


def _join(graph: ir.Graph, add: ir.Node, norm: ir.Node) -> None:
    residual, branch = add.inputs  # in the order of canonical layers
    bias, biased = None, None if branch is None else branch.producer()
    if biased is not None and biased.op_type == "Add" and only_use(graph, biased) is add:
        branch, bias = biased.inputs
    total = _insert_joint(norm, branch, residual, bias)
    graph.remove(norm, safe=True)
    replace_value(add.outputs[0], total)
    graph.remove([add] if biased is None or bias is None else [add, biased], safe=True)


def _insert_joint(
    norm: ir.Node,
    branch: ir.Value | None,
    residual: ir.Value | None,
    bias: ir.Value | None,
    *,
    epsilon_scale: float = 1,
) -> ir.Value:
    """Insert a joint norm that replaces the results of ``norm``; return the sum."""
    weights = list(norm.inputs[1:])
    if norm.op_type == "LayerNormalization" and len(weights) == 1:
        weights.append(None)  # this norm has no bias
    joint = ir.node(
        NORMS[norm.op_type],
        [branch, residual, *weights, bias],
        {"epsilon": epsilon_scale * epsilon_of(norm)},
        domain=CONTRIB_DOMAIN,
        num_outputs=4,
    )
    normalised, mean, deviation, total = joint.outputs
    mean.name = deviation.name = ""  # not computed
    graph = norm.graph
    assert graph is not None
    graph.insert_before(norm, joint)
    replace_value(norm.outputs[0], normalised)
    return total
