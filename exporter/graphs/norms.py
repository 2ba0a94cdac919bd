"""Layer normalisation by skipdec's operator, bitwise equal on every processor.

ONNX Runtime's operator sums a row in an order that depends on the processor's registers.
"""

from __future__ import annotations

import onnx_ir as ir

from ...engines.kernels.library import DOMAIN
from .lowering import replace_value

LAYER_NORM = "LayerNorm"


def replace_norms(graph: ir.Graph) -> None:
    """Replace every float32 LayerNormalization over the last axis in place."""
    for node in [node for node in graph if node.op_type == "LayerNormalization"]:
        axis = node.attributes.get_int("axis", -1)
        assert axis == -1, axis
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        own = ir.node(LAYER_NORM, node.inputs, {"epsilon": epsilon}, domain=DOMAIN, name=node.name)
        _replace(graph, node, own)


def restore_norms(graph: ir.Graph) -> None:
    """Undo ``replace_norms``."""
    for node in [node for node in graph if node.domain == DOMAIN and node.op_type == LAYER_NORM]:
        attributes = {"axis": -1, "epsilon": node.attributes.get_float("epsilon"), "stash_type": 1}
        standard = ir.node("LayerNormalization", node.inputs, attributes, name=node.name)
        _replace(graph, node, standard)


def _replace(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    graph.insert_before(old, new)
    replace_value(old.outputs[0], new.outputs[0])
    graph.remove(old, safe=True)
