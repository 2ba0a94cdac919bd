"""The narrow head of drafts: the head's graph cut to the first tokens of the vocabulary.

The packings of skipdec's operators store one block of columns after another, so the first columns
of a weight are the first bytes of each of its tensors. The narrow graph refers to these bytes of
the head's own file: no weight is written, and no page is mapped twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.kernels.library import DOMAIN
from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from ...engines.memory import WEIGHTS_ALIGNMENT
from ..architecture.architecture import engine_parameters
from ..architecture.decoder import HEAD_WEIGHT
from ..architecture.signature import Signature
from ..quantization.packed import PackedQuantizer, weight_quantizer

if TYPE_CHECKING:
    import onnx_ir as ir

    from .lowering import LoweredEngine


def packed_head(precision: PrecisionSpec) -> PackedQuantizer | None:
    """Return the packing of a head on skipdec's kernels; None if its columns aren't contiguous."""
    quantizer = weight_quantizer(EngineKind.HEAD, precision)
    return quantizer if isinstance(quantizer, PackedQuantizer) else None


def narrow_shapes(
    model: ModelSpec, precision: PrecisionSpec, tokens: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that are cut, by name."""
    quantizer = packed_head(precision)
    assert quantizer is not None, precision
    (weight,) = (
        each for each in engine_parameters(EngineKind.HEAD, model) if each.name == HEAD_WEIGHT
    )
    layout = quantizer.layout((weight.shape[0], tokens))
    return {f"{HEAD_WEIGHT}.{suffix}": shape for suffix, (_, shape) in layout.items()}


def narrow_head(
    head: Path, signature: Signature, model: ModelSpec, precision: PrecisionSpec, tokens: int
) -> LoweredEngine:
    """Return the graph at ``head`` cut to the logits of the first ``tokens``, a multiple of 64.

    Its weights stay where they are; those of the vocabulary's product end earlier. ``signature`` is
    that of the whole head.
    """
    import onnx_ir as ir

    from .lowering import LoweredEngine

    narrow = ir.load(head)
    quantizer = packed_head(precision)
    assert quantizer is not None, precision
    (product,) = (
        node
        for node in narrow.graph
        if node.domain == DOMAIN and node.op_type == quantizer.operator
    )
    (logits,) = narrow.graph.outputs
    assert product.outputs[0] is logits, "the head computes more after its product"
    shapes = narrow_shapes(model, precision, tokens)
    for value in product.inputs[1:]:
        assert value is not None
        assert value.name is not None
        _cut(narrow.graph.initializers[value.name], shapes.get(value.name, (tokens,)))
    if "N" in product.attributes:
        product.attributes["N"] = ir.AttrInt64("N", tokens)
    assert logits.shape is not None
    logits.shape = ir.Shape([*logits.shape.dims[:-1], tokens])
    (described,) = signature.outputs
    described = described.model_copy(update={"shape": (*described.shape[:-1], tokens)})
    return LoweredEngine(narrow, Signature(signature.inputs, (described,)), precision)


def external_bytes(graph: ir.Model) -> int:
    """Return the size of the weights to which ``graph`` refers."""
    return sum(tensor.length or 0 for tensor in _external(graph))


def _cut(value: ir.Value, shape: tuple[int, ...]) -> None:
    """Keep the first entries of an external tensor along its first axis."""
    import onnx_ir as ir

    tensor = value.const_value
    assert isinstance(tensor, ir.ExternalTensor), value.name
    assert tensor.shape.numpy()[1:] == shape[1:], (value.name, tensor.shape, shape)
    assert (tensor.offset or 0) % WEIGHTS_ALIGNMENT == 0, value.name
    rows = int(tensor.shape.numpy()[0])
    assert tensor.length is not None
    value.const_value = ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length // rows * shape[0],
        tensor.dtype,
        shape=ir.Shape(shape),
        name=value.name or "",
        base_dir=tensor.base_dir,
    )
    value.shape = ir.Shape(shape)


def _external(graph: ir.Model) -> Iterator[ir.ExternalTensor]:
    import onnx_ir as ir

    for value in graph.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            yield value.const_value
