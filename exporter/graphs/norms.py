"""Layer and RMS normalisation as skipdec's operators.

LayerNormalization → LayerNorm, RMSNormalization → RmsNorm, both over the last axis in float32.
skipdec's have equal bits on every processor, unlike ONNX Runtime's sums.
"""

from __future__ import annotations

import onnx_ir as ir

from ...engines.kernels.library import DOMAIN
from .lowering import replace_node

NORMS = {"LayerNormalization": "LayerNorm", "RMSNormalization": "RmsNorm"}  # standard → skipdec's

_DEFAULT_EPSILON = 1e-5  # of both standard operators


def replace_norms(graph: ir.Graph) -> None:
    """Replace every float32 norm over the last axis in place."""
    for node in [node for node in graph if node.domain == "" and node.op_type in NORMS]:
        axis = node.attributes.get_int("axis", -1)
        assert axis == -1, axis
        epsilon = {"epsilon": node.attributes.get_float("epsilon", _DEFAULT_EPSILON)}
        own = ir.node(NORMS[node.op_type], node.inputs, epsilon, domain=DOMAIN, name=node.name)
        replace_node(graph, node, own)
