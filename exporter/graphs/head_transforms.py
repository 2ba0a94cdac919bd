"""Norms and rotation of heads before attention, as operands of skipdec's Attention.

Canonical layers prepare queries and keys [B, N, S, D] by standard operators:

    RMSNormalization (optional) → RotaryEmbedding by Cos and Sin of position_ids · inv_freq

skipdec's Attention does both itself, at the positions that follow from write_indices.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...engines.manifest import TensorRole
from .lowering import epsilon_of


@dataclass(frozen=True)
class HeadTransform:
    """Transforms of query and key heads: norms, each with a weight [D], then a rotation.

    ``inv_freq`` [R/2] are frequencies in radians per position; ``rotary_scale`` multiplies cosines
    and sines. None means no rotation, or no norm.
    """

    inv_freq: ir.Value | None = None
    rotary_scale: float = 1.0
    query_norm: ir.Value | None = None
    key_norm: ir.Value | None = None
    norm_epsilon: float = 0.0

    @property
    def operands(self) -> list[ir.Value | None]:
        """Return the operands of Attention after write_indices; none without transforms."""
        operands = [self.inv_freq, self.query_norm, self.key_norm]
        while operands and operands[-1] is None:
            operands.pop()
        return operands

    @property
    def attributes(self) -> dict[str, float]:
        """Return the attributes of Attention that belong to ``operands``."""
        rotary = {} if self.inv_freq is None else {"rotary_scale": self.rotary_scale}
        has_norm = self.query_norm is not None or self.key_norm is not None
        return rotary | ({"norm_epsilon": self.norm_epsilon} if has_norm else {})


def take_head_transform(query: ir.Value, key: ir.Value) -> tuple[ir.Value, ir.Value, HeadTransform]:
    """Return query and key before their last norms and rotation, and these transforms.

    Values computed by other operators are returned unchanged. The nodes stay in the graph.
    """
    query, key, rotation = take_rotation(query, key)
    inv_freq, scale = rotation.inv_freq, rotation.rotary_scale
    norms = [_norm(value) for value in (query, key)]
    found = [norm for norm in norms if norm is not None]
    epsilon = found[0][2] if found else 0.0
    if any(other != epsilon for *_, other in found):
        return query, key, HeadTransform(inv_freq, scale)
    sources = [
        value if norm is None else norm[0] for value, norm in zip((query, key), norms, strict=True)
    ]
    weights = [None if norm is None else norm[1] for norm in norms]
    return sources[0], sources[1], HeadTransform(inv_freq, scale, weights[0], weights[1], epsilon)


def take_rotation(query: ir.Value, key: ir.Value) -> tuple[ir.Value, ir.Value, HeadTransform]:
    """Return query and key before the last rotation, if they share it, and it; see above."""
    unchanged = query, key, HeadTransform()
    nodes = [value.producer() for value in (query, key)]
    if any(node is None or node.op_type != "RotaryEmbedding" for node in nodes):
        return unchanged
    first, second = (node for node in nodes if node is not None)
    operands, attributes = first.inputs[1:], first.attributes
    if second.inputs[1:] != operands or len(operands) != 2 or attributes != second.attributes:
        return unchanged
    if attributes.get_int("interleaved", 0) or attributes.get_int("num_heads", 0):
        return unchanged
    cosine, sine = _angle(operands[0], "Cos"), _angle(operands[1], "Sin")
    before = first.inputs[0], second.inputs[0]
    if cosine is None or cosine != sine or before[0] is None or before[1] is None:
        return unchanged
    return before[0], before[1], HeadTransform(*cosine)


def _angle(value: ir.Value | None, function: str) -> tuple[ir.Value, float] | None:
    """Return inv_freq and the scale of ``scale · function(position_ids · inv_freq)``, also cast."""
    scale, node = 1.0, None if value is None else value.producer()
    if node is not None and node.op_type == "Cast":
        value = node.inputs[0]
        node = None if value is None else value.producer()
    if node is not None and node.op_type == "Mul":
        constants = [each for each in node.inputs if each is not None and _is_scalar(each)]
        if len(constants) != 1 or constants[0].const_value is None:
            return None
        scale = float(constants[0].const_value.numpy())
        value = next(each for each in node.inputs if each is not constants[0])
        node = None if value is None else value.producer()
    if node is None or node.op_type != function or node.inputs[0] is None:
        return None
    product = node.inputs[0].producer()
    if product is None or product.op_type != "Mul":
        return None
    positions, inv_freq = product.inputs
    if positions is None or inv_freq is None or not inv_freq.is_initializer():
        return None
    while (maker := positions.producer()) is not None and maker.op_type in ("Cast", "Unsqueeze"):
        assert maker.inputs[0] is not None
        positions = maker.inputs[0]
    return (inv_freq, scale) if positions.name == TensorRole.POSITION_IDS else None


def _is_scalar(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None and not value.const_value.shape


def _norm(value: ir.Value) -> tuple[ir.Value, ir.Value, float] | None:
    """Return the input, the weight [D] and epsilon if a norm of each head produces ``value``."""
    node = value.producer()
    if node is None or node.op_type != "RMSNormalization":
        return None
    source, weight = node.inputs
    assert source is not None
    assert weight is not None
    maker = source.producer()
    if maker is None or maker.op_type != "Transpose" or node.attributes.get_int("axis", -1) != -1:
        return None  # not over heads
    return source, weight, epsilon_of(node)
