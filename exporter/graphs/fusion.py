"""Fusion of a product with packed weights and the nodes after it into one of skipdec's operators.

    MatMul (+ Add bias) (+ Relu | Gelu) (+ Add residual)      →  QuantizedLinear, FloatLinear, …
    MatMul (+ Add bias) → Split → SiLU(gate) · other (gated)  →  the same operators

Inputs of a fused product, in this order: the activations, the tensors of the packed weight, and an
optional bias and residual. Its attribute ``activation`` is an index into ``ACTIVATIONS``, or
``SILU`` for a gated product, whose attribute ``gated`` is 1. A gate in a graph:

    halves [..., 2 F] → Split → gate, other [..., F];  Sigmoid(gate) · gate · other → [..., F]
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...engines.errors import UnsupportedModelError
from ...engines.kernels.library import DOMAIN
from ..quantization.packed import PackedQuantizer
from .lowering import consumer, only_use, quantized_weight, replace_value

ACTIVATIONS = ("", "Relu", "Gelu")  # by the attribute's value
ACTIVATION = "activation"
SILU = 3  # the attribute's value for SiLU


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
    """Replace ``product``, a MatMul with a weight initialiser [K, N], and all that can be fused.

    Raises UnsupportedModelError if ``quantizer`` is gated and no gate follows the product. The
    product can't remain plain then, because readers of a bundle derive the weight's layout from the
    parameter, not from the graph.
    """
    chain = (_gated_chain if quantizer.is_gated else _chain)(graph, product)
    weight, shape, tensors = quantized_weight(graph, product, quantizer)
    operands = [product.inputs[0], *tensors.values(), chain.bias, chain.residual]
    while operands[-1] is None:
        operands.pop()
    attributes = quantizer.attributes(shape) | {ACTIVATION: chain.activation}
    node = ir.node(quantizer.operator, operands, attributes, domain=DOMAIN, name=weight)
    graph.insert_before(chain.last, node)
    replace_value(chain.last.outputs[0], node.outputs[0])
    graph.remove(reversed(chain.nodes), safe=True)


def _chain(graph: ir.Graph, product: ir.Node) -> _Chain:
    """Return the nodes after ``product`` that can be fused; each must have a single use."""
    chain, following = _biased(graph, product)
    if following is not None and following.op_type in ACTIVATIONS[1:] and _is_exact(following):
        chain.activation = ACTIVATIONS.index(following.op_type)
        following = _extend(graph, chain, following)
    other = _other_operand(following, chain.last)
    if other is not None and not other.is_initializer():
        _extend(graph, chain, following)
        chain.residual = other
    return chain


def _gated_chain(graph: ir.Graph, product: ir.Node) -> _Chain:
    """Return the nodes of a gated product."""
    chain, following = _biased(graph, product)
    gate = gate_after(graph, following)
    if gate is None:
        weight = product.inputs[1]
        raise UnsupportedModelError(
            f"the product with {weight.name if weight is not None else product.name}",
            "its parameter has is_gated, but its graph does not use the result in SiLU(gate) · "
            "other alone: Split into equal halves of the last axis, then Sigmoid and two Mul; "
            "correct the module, or leave is_gated out",
        )
    chain.nodes += gate
    chain.activation = SILU
    return chain


def _biased(graph: ir.Graph, product: ir.Node) -> tuple[_Chain, ir.Node | None]:
    """Return ``product`` with its bias, if it has one, and the only user of their result."""
    chain = _Chain([product])
    following = only_use(graph, product)
    if (bias := _other_operand(following, chain.last)) is not None and _is_vector(bias):
        following = _extend(graph, chain, following)
        chain.bias = bias
    return chain, following


def _extend(graph: ir.Graph, chain: _Chain, node: ir.Node | None) -> ir.Node | None:
    """Append ``node`` to ``chain``; return its only user, if any."""
    assert node is not None
    chain.nodes.append(node)
    return only_use(graph, node)


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


def gate_after(graph: ir.Graph, split: ir.Node | None) -> list[ir.Node] | None:
    """Return Split, Sigmoid and two Muls of the gate that begins with ``split``; None if none.

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
