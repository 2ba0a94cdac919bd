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


def absorb_biases(graph: ir.Graph) -> None:
    """Replace every 16-bit feed-forward with ReLU and two biases in place."""
    for relu in [node for node in graph if node.op_type == "Relu"]:
        found = _feed_forward(graph, relu)
        if found is not None and found.first.dtype != ir.DataType.FLOAT:
            found.absorb_biases()


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
    return _FeedForward(graph, nodes, inputs, *known)


@dataclass(frozen=True)
class _FeedForward:
    """The nodes of relu(x W + b) V + d in order, and their parameters."""

    graph: ir.Graph
    nodes: list[ir.Node]
    inputs: ir.Value
    first: ir.Value
    first_bias: ir.Value
    second: ir.Value
    second_bias: ir.Value

    def absorb_biases(self) -> None:
        """Replace the nodes by new ones, inserted before the last."""
        products = self._node("MatMul", [self.inputs, self._wide()])
        active = self._node("Max", [products, self._thresholds()])
        result = self._node("MatMul", [active, self._tall()])
        replace_value(self.nodes[-1].outputs[0], result)
        self.graph.remove(reversed(self.nodes), safe=True)

    @property
    def _size(self) -> int:
        assert self.first.shape is not None
        return int(self.first.shape.numpy()[0])  # E

    def _wide(self) -> ir.Value:
        """Return W with columns of zeros."""
        zeros = self._zeros("feed_forward.columns", self._size, _ADDED)
        return self._node("Concat", [self.first, zeros], axis=1)

    def _thresholds(self) -> ir.Value:
        """Return -b, then 1 for each row of b V + d."""
        negative = self._node("Neg", [self._float32(self.first_bias)])
        ones = constant(self.graph, "feed_forward.ones", np.array([1, 1] + [0] * 6, np.float32))
        return self._narrow(self._node("Concat", [negative, ones], axis=0))

    def _tall(self) -> ir.Value:
        """Return V with b V + d in two rows below, and zeros."""
        rows = constant(self.graph, "feed_forward.row", np.array([1, -1], np.int64))
        row = self._node("Reshape", [self._float32(self.first_bias), rows])  # [1, F]
        product = self._node("MatMul", [row, self._float32(self.second)])
        total = self._node("Add", [product, self._float32(self.second_bias)])  # [1, E]
        high = self._narrow(total)
        low = self._narrow(self._node("Sub", [total, self._float32(high)]))
        zeros = self._zeros("feed_forward.rows", _ADDED - 2, self._size)
        return self._node("Concat", [self.second, high, low, zeros], axis=0)

    def _zeros(self, name: str, *shape: int) -> ir.Value:
        sizes = constant(self.graph, name, np.array(shape, np.int64))
        zero = ir.tensor([0.0], self.first.dtype)
        return self._node("ConstantOfShape", [sizes], value=zero)

    def _float32(self, value: ir.Value) -> ir.Value:
        return self._node("Cast", [value], to=ir.DataType.FLOAT)

    def _narrow(self, value: ir.Value) -> ir.Value:
        assert self.first.dtype is not None
        return self._node("Cast", [value], to=self.first.dtype)

    def _node(
        self, op_type: str, inputs: list[ir.Value], **attributes: int | ir.TensorProtocol
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes)
        self.graph.insert_before(self.nodes[-1], node)
        return node.outputs[0]
