"""Moves the biases of a 16-bit feed-forward with ReLU into its second product.

    relu(x W + b) V + d  =  [max(x W, -b), 1] [V; b V + d]

The constant 1 comes from columns of zeros beside W. b V + d takes two rows below V, because the
second holds what 16 bits of the first can't. One kernel, Max, thus replaces the three that add
biases and apply ReLU. The widened matrices have no data in the file: sessions compute them once,
when they fold constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .lowering import constant, only_use, replace_value

_ADDED = 8  # columns of W and rows of V: products of multiples of 8 run on tensor cores


@dataclass(frozen=True)
class _FeedForward:
    """The nodes of relu(x W + b) V + d in order, and their parameters."""

    nodes: list[ir.Node]
    inputs: ir.Value
    first: ir.Value
    first_bias: ir.Value
    second: ir.Value
    second_bias: ir.Value


def absorb_biases(graph: ir.Graph) -> None:
    """Replace every 16-bit feed-forward with ReLU and two biases in place."""
    for relu in [node for node in graph if node.op_type == "Relu"]:
        found = _feed_forward(graph, relu)
        if found is not None and found.first.dtype != ir.DataType.FLOAT:
            _Absorption(graph, found).run()


def _feed_forward(graph: ir.Graph, relu: ir.Node) -> _FeedForward | None:
    add = None if relu.inputs[0] is None else relu.inputs[0].producer()
    first = None if add is None or add.inputs[0] is None else add.inputs[0].producer()
    second = only_use(graph, relu)
    last = None if second is None else only_use(graph, second)
    if add is None or first is None or second is None or last is None:
        return None
    nodes = [first, add, relu, second, last]
    if [node.op_type for node in nodes] != ["MatMul", "Add", "Relu", "MatMul", "Add"]:
        return None
    inputs = first.inputs[0]
    parameters = [node.inputs[1] for node in (first, add, second, last)]
    known = [each for each in parameters if each is not None and each.is_initializer()]
    if inputs is None or len(known) != len(parameters):
        return None
    return _FeedForward(nodes, inputs, *known)


class _Absorption:
    """Replaces the nodes of a feed-forward by new ones, inserted before its last node."""

    def __init__(self, graph: ir.Graph, found: _FeedForward) -> None:
        assert found.first.shape is not None
        self._graph = graph
        self._found = found
        self._size = int(found.first.shape.numpy()[0])  # E

    def run(self) -> None:
        """Replace the nodes."""
        found = self._found
        products = self._node("MatMul", [found.inputs, self._wide()])
        active = self._node("Max", [products, self._thresholds()])
        result = self._node("MatMul", [active, self._tall()])
        replace_value(found.nodes[-1].outputs[0], result)
        self._graph.remove(reversed(found.nodes), safe=True)

    def _wide(self) -> ir.Value:
        """Return W with columns of zeros."""
        zeros = self._zeros("feed_forward.columns", self._size, _ADDED)
        return self._node("Concat", [self._found.first, zeros], axis=1)

    def _thresholds(self) -> ir.Value:
        """Return -b, then 1 for each row of b V + d."""
        negative = self._node("Neg", [self._float32(self._found.first_bias)])
        ones = constant(self._graph, "feed_forward.ones", np.array([1, 1] + [0] * 6, np.float32))
        return self._narrow(self._node("Concat", [negative, ones], axis=0))

    def _tall(self) -> ir.Value:
        """Return V with b V + d in two rows below, and zeros."""
        found = self._found
        rows = constant(self._graph, "feed_forward.row", np.array([1, -1], np.int64))
        row = self._node("Reshape", [self._float32(found.first_bias), rows])  # [1, F]
        product = self._node("MatMul", [row, self._float32(found.second)])
        total = self._node("Add", [product, self._float32(found.second_bias)])  # [1, E]
        high = self._narrow(total)
        low = self._narrow(self._node("Sub", [total, self._float32(high)]))
        zeros = self._zeros("feed_forward.rows", _ADDED - 2, self._size)
        return self._node("Concat", [found.second, high, low, zeros], axis=0)

    def _zeros(self, name: str, *shape: int) -> ir.Value:
        sizes = constant(self._graph, name, np.array(shape, np.int64))
        zero = ir.tensor([0.0], self._found.first.dtype)
        return self._node("ConstantOfShape", [sizes], value=zero)

    def _float32(self, value: ir.Value) -> ir.Value:
        return self._node("Cast", [value], to=ir.DataType.FLOAT)

    def _narrow(self, value: ir.Value) -> ir.Value:
        assert self._found.first.dtype is not None
        return self._node("Cast", [value], to=self._found.first.dtype)

    def _node(
        self, op_type: str, inputs: list[ir.Value], **attributes: int | ir.TensorProtocol
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes)
        self._graph.insert_before(self._found.nodes[-1], node)
        return node.outputs[0]
