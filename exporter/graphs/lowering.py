"""Lowering of canonical graphs: definitions and helpers that all targets share.

A lowering works on graphs without data; ``building/`` binds the weights afterwards. It does not
need torch, which machines that only build engines may lack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ...engines.importing import load
from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from ...engines.targets import target_of
from ..architecture.architecture import canonical_signature
from ..architecture.signature import Signature
from ..quantization.quantize import WeightQuantizer

CONTRIB_DOMAIN = "com.microsoft"  # ONNX Runtime's own operators


@dataclass(frozen=True)
class LoweredEngine:
    """A target's graph without data, its precision, and the quantisers of its weights.

    ``quantizers`` maps a parameter's name to the quantiser of its weight; instead of the parameter,
    the graph then has the quantiser's tensors, named ``<parameter>.<tensor>``.
    """

    graph: ir.Model
    signature: Signature
    precision: PrecisionSpec
    quantizers: Mapping[str, WeightQuantizer] = field(default_factory=dict)


Lowering = Callable[[ir.Model, EngineKind, ModelSpec, PrecisionSpec], LoweredEngine]


def lowering_of(target: str) -> Lowering:
    """Return the function that rewrites canonical graphs for ``target``."""
    lowering: Lowering = load(target_of(target).lowering)
    return lowering


def keep_canonical(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return the canonical graph itself, with float weights whatever ``precision.quantize``."""
    signature = canonical_signature(kind, model, precision.dtype)
    return LoweredEngine(graph.clone(), signature, PrecisionSpec(dtype=precision.dtype))


def attention_node(graph: ir.Graph) -> ir.Node:
    """Return the only Attention node."""
    (node,) = (node for node in graph if node.op_type == "Attention")
    return node


def epsilon_of(norm: ir.Node) -> float:
    """Return the epsilon of a standard norm; both operators have the same default."""
    return norm.attributes.get_float("epsilon", 1e-5)


def producer(value: ir.Value | None) -> ir.Node:
    """Return the node that produces ``value``, which must not be an input or initialiser."""
    assert value is not None
    node = value.producer()
    assert node is not None, value.name
    return node


def consumer(value: ir.Value) -> ir.Node:
    """Return the only node that uses ``value``."""
    (use,) = value.uses()
    return use.node


def only_use(graph: ir.Graph, node: ir.Node) -> ir.Node | None:
    """Return the node that reads the output of ``node``, if there is exactly one use."""
    (value,) = node.outputs
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and value not in graph.outputs else None


def products_by_weight(graph: ir.Graph) -> dict[str | None, ir.Node]:
    """Return the MatMul nodes by the name of their second operand."""
    products = [node for node in graph if node.op_type == "MatMul"]
    return {weight.name: node for node in products if (weight := node.inputs[1]) is not None}


def element_type(dtype: str) -> ir.DataType:
    """Return the ONNX type of elements of ``dtype``, numpy's name."""
    return ir.DataType.from_numpy(np.dtype(dtype))


def initializer(graph: ir.Graph, name: str, dtype: str, shape: tuple[int, ...]) -> ir.Value:
    """Register an initialiser without data; ``dtype`` is numpy's name."""
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(element_type(dtype)))
    graph.initializers[name] = value
    return value


def constant(graph: ir.Graph, name: str, value: np.generic | np.ndarray) -> ir.Value:
    """Return the initialiser ``name``, registered with ``value`` if it is new."""
    if name not in graph.initializers:
        tensor = ir.tensor(np.asarray(value), name=name)
        graph.register_initializer(ir.val(name, const_value=tensor))
    return graph.initializers[name]


def quantized_weight(
    graph: ir.Graph, product: ir.Node, quantizer: WeightQuantizer
) -> tuple[str, tuple[int, int], dict[str, ir.Value]]:
    """Replace the weight [K, N] of ``product``, a MatMul, by the quantiser's tensors without data.

    Returns its name and shape, and the new initialisers; ``product`` does not read them yet.
    """
    weight = product.inputs[1]
    assert weight is not None
    assert weight.name is not None
    assert weight.shape is not None
    in_size, out_size = (int(size) for size in weight.shape.numpy())
    tensors = {
        suffix: initializer(graph, f"{weight.name}.{suffix}", dtype, size)
        for suffix, (dtype, size) in quantizer.layout((in_size, out_size)).items()
    }
    del graph.initializers[weight.name]
    return weight.name, (in_size, out_size), tensors


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` by ``new``, with its name, type and shape, also as a graph output."""
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name, old.name = old.name, None


def replace_node(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Put ``new`` in the place of ``old``; both have one output."""
    graph.insert_before(old, new)
    replace_value(old.outputs[0], new.outputs[0])
    graph.remove(old, safe=True)


def parameters_as_inputs(model: ir.Model) -> ir.Model:
    """Return a serialisable copy in which initialisers without data are inputs."""
    copy = model.clone()
    for name, value in list(copy.graph.initializers.items()):
        if value.const_value is None:
            copy.graph.initializers.pop(name)
            copy.graph.inputs.append(value)
    return copy
