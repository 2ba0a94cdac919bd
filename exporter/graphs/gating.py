"""The gate of a feed-forward layer in a graph: SiLU(gate) · other, for the halves of one value.

halves [..., 2 F] → Split → gate, other [..., F];  Sigmoid(gate) · gate · other → [..., F]
"""

from __future__ import annotations

import onnx_ir as ir

from .lowering import consumer, only_use


def gate_after(graph: ir.Graph, split: ir.Node | None) -> list[ir.Node] | None:
    """Return Split, Sigmoid and two Mul of a gate that begins with ``split``; None if none does.

    Only the last node's result is used elsewhere.
    """
    if split is None or not _halves_last_axis(split):
        return None
    gate, other = split.outputs
    sigmoids = [use.node for use in gate.uses() if use.node.op_type == "Sigmoid"]
    if len(sigmoids) != 1 or len(gate.uses()) != 2 or len(other.uses()) != 1:
        return None
    (sigmoid,) = sigmoids
    silu, product = only_use(graph, sigmoid), consumer(other)
    if silu is None or not _multiplies(silu, gate, sigmoid.outputs[0]):
        return None
    if only_use(graph, silu) is not product or not _multiplies(product, silu.outputs[0], other):
        return None
    return [split, sigmoid, silu, product]


def _halves_last_axis(node: ir.Node) -> bool:
    """Return True for a Split of hidden states [B, S, 2 F] into two equal halves."""
    if node.op_type != "Split" or len(node.outputs) != 2:
        return False
    sizes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    is_even = "num_outputs" in node.attributes if sizes is None else len(set(sizes.numpy())) == 1
    return is_even and node.attributes.get_int("axis", 0) in (-1, 2)


def _multiplies(node: ir.Node, *factors: ir.Value) -> bool:
    return node.op_type == "Mul" and {*node.inputs} == {*factors}
