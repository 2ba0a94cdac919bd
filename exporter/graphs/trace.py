"""Tracing of an engine's torch module to its canonical graph: opset 24, standard operators only.

The canonical graph of a layer uses the ONNX operators TensorScatter and Attention; all targets are
lowered from it. Initialisers have names, dtypes and shapes but no data, so one trace serves all
layers of a model.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor
from torch.export import Dim

from ...engines.manifest import EngineKind, FloatType, ModelSpec, TensorSpec
from ..architecture.architecture import canonical_signature
from ..architecture.decoder_modules import engine_module
from ..architecture.signature import Signature
from .lowering import element_type, parameters_as_inputs

OPSET_VERSION = 24

# Sizes of the traced example: distinct and above 1, so that no two symbols are merged.
_EXAMPLE_SIZES = {"B": 2, "S": 3, "T": 5, "R": 4}


def trace_engine(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    """Return the checked canonical graph of an engine of ``kind``, without paths or doc strings.

    Tensors are named after their roles. Initialisers are named after the module's parameters and
    have no data (``const_value`` is None). Equal arguments give equal graphs, byte for byte.
    """
    signature = canonical_signature(kind, model, dtype)
    module = engine_module(kind, model, getattr(torch, dtype), _symbolic_attention)
    _tell_apart(module)
    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            tuple(_example(spec) for spec in signature.inputs),
            dynamo=True,
            opset_version=OPSET_VERSION,
            dynamic_shapes=tuple(_dynamic_axes(spec) for spec in signature.inputs),
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
            verbose=False,
        )
    assert program is not None
    traced = program.model
    _strip(traced, {name for name, _ in module.named_parameters()})
    _declare(traced.graph, signature)
    # Parameters have no data; onnx.checker accepts them as inputs.
    onnx.checker.check_model(ir.to_proto(parameters_as_inputs(traced)), full_check=True)
    return traced


def _symbolic_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    write_indices: Tensor,
    attention_mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Express ``modules.cached_attention`` by the operators TensorScatter and Attention."""

    def scatter(cache: Tensor, update: Tensor) -> Tensor:
        return torch.onnx.ops.symbolic(
            "TensorScatter",
            (cache, update, write_indices),
            {"axis": 2},
            dtype=cache.dtype,
            shape=cache.shape,
            version=OPSET_VERSION,
        )

    present_key, present_value = scatter(past_key, key), scatter(past_value, value)
    attended = torch.onnx.ops.symbolic(
        "Attention",
        (query, present_key, present_value, attention_mask),
        {"scale": query.shape[-1] ** -0.5},
        dtype=query.dtype,
        shape=query.shape,
        version=OPSET_VERSION,
    )
    return attended, present_key, present_value


def _tell_apart(module: torch.nn.Module) -> None:
    """Give each parameter a distinct first element and leave the rest of its memory untouched.

    The exporter's optimiser merges initialisers of equal content, which fresh memory often has.
    """
    for index, parameter in enumerate(module.parameters()):
        parameter.view(-1)[0] = index + 2


def _example(spec: TensorSpec) -> Tensor:
    sizes = [_EXAMPLE_SIZES[size] if isinstance(size, str) else size for size in spec.shape]
    return torch.zeros(sizes, dtype=getattr(torch, spec.dtype))


def _dynamic_axes(spec: TensorSpec) -> dict[int, object]:
    return {axis: Dim.DYNAMIC for axis, size in enumerate(spec.shape) if isinstance(size, str)}


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence warnings about torchvision and deprecations inside torch; errors still raise."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _strip(traced: ir.Model, parameter_names: set[str]) -> None:
    """Drop what varies between machines and runs: paths, doc strings, symbol names, data."""
    ClearMetadataAndDocStringPass()(traced)
    traced.producer_name, traced.producer_version = "skipdec", None
    assert parameter_names <= traced.graph.initializers.keys()
    for value in (*traced.graph.inputs, *traced.graph.initializers.values()):
        value.metadata_props.clear()
    for node in traced.graph:
        for value in node.outputs:
            value.metadata_props.clear()
            value.shape = None
    for name, value in traced.graph.initializers.items():
        if name in parameter_names:
            value.const_value = None


def _declare(graph: ir.Graph, signature: Signature) -> None:
    """Give inputs and outputs their declared symbols, after checking names, ranks and dtypes."""
    for values, specs in ((graph.inputs, signature.inputs), (graph.outputs, signature.outputs)):
        for value, spec in zip(values, specs, strict=True):
            assert value.name == spec.name, (value.name, spec.name)
            assert value.dtype == element_type(spec.dtype), (spec.name, value.dtype)
            value.shape = ir.Shape(spec.shape)
