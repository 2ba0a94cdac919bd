"""Runs each engine of both sides on the same calls and measures where they diverge."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from polygraphy.backend.onnx import ModifyOutputs, OnnxFromPath
from polygraphy.comparator import (
    CosineSimilarityCompareFunc,
    IterationResult,
    SimpleCompareFunc,
    SimpleThreshold,
)
from polygraphy.logger import G_LOGGER

from ...engines.errors import SkipDecError, UsageError
from ...engines.host.events import Events
from ...engines.manifest import EngineKind
from ...engines.memory import Array
from ..quantization.quantize import quantization
from ..verification.tolerance import Tolerance
from .config import CompareConfig
from .inputs import EngineCall, random_calls
from .report import ComparisonReport, TensorErrors
from .sides import Side

# How much rounding one engine's weights changes its outputs, as fractions of the largest value.
_ROUNDED: Mapping[str, Tolerance] = {
    "none": Tolerance(0, 0),
    "int8": Tolerance(5e-2, 1e-2),
    "int8-block": Tolerance(5e-2, 1e-2),
    "fp8": Tolerance(2e-1, 5e-2),
    "int4": Tolerance(3e-1, 5e-2),
}
# Names that torch's exporter and onnx-ir generate, which mean nothing in another graph.
_AUTOMATIC = re.compile(r"val_\d+")


def compare_engines(
    config: CompareConfig, subject: Side, reference: Side, events: Events
) -> ComparisonReport:
    """Compare the engines that ``config`` selects, and inner tensors of the first that diverges.

    Raises UsageError for a layer that does not exist, SkipDecError if an engine fails to run.
    """
    sides = (subject, reference)
    names = _wanted_engines(config.layers, subject)
    outputs: list[TensorErrors] = []
    inner: list[TensorErrors] = []
    events.stage("comparing", len(names))
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):  # Polygraphy logs to stdout
        for name in names:
            spec = reference.engines[name]
            manifests = (subject.bundle.manifest, reference.bundle.manifest)
            calls = random_calls(spec, manifests, config.seed)
            tolerance = _tolerance(sides, spec.kind, config.atol)
            found = list(_errors(name, calls, [s.outputs(name, calls) for s in sides], tolerance))
            if any(each.diverges for each in found) and not inner:
                inner += _inner_errors(name, calls, sides, tolerance)
            outputs += found
            events.advance(name)
    return ComparisonReport(
        subject=subject.name, reference=reference.name, outputs=tuple(outputs), inner=tuple(inner)
    )


def _wanted_engines(layers: Sequence[int], subject: Side) -> list[str]:
    """Return names in execution order. Raises UsageError for a layer that does not exist."""
    num_layers = subject.bundle.manifest.model.num_layers
    if unknown := [layer for layer in layers if not 0 <= layer < num_layers]:
        raise UsageError(
            "--layer",
            f"is {', '.join(map(str, unknown))}; {subject.name} has 0 to {num_layers - 1}",
        )
    return [
        name for name, spec in subject.engines.items() if not layers or spec.layer_index in layers
    ]


def _tolerance(sides: Sequence[Side], kind: EngineKind, atol: float | None) -> Tolerance:
    """Return the larger tolerance of both sides, or that of rounding if only one side rounds."""
    if atol is not None:
        return Tolerance(atol, atol)
    allowed = [side.tolerance(kind) for side in sides]
    formats = {quantization(kind, side.precision) for side in sides}
    if len(formats) > 1:
        allowed += [_ROUNDED[each] for each in formats]
    return Tolerance(max(each.largest for each in allowed), max(each.median for each in allowed))


def _inner_errors(
    name: str, calls: Sequence[EngineCall], sides: Sequence[Side], tolerance: Tolerance
) -> Iterator[TensorErrors]:
    """Repeat the calls with the tensors common to both graphs as outputs."""
    paths = [side.graph_path(name) for side in sides]
    graphs = [OnnxFromPath(str(path), ignore_external_data=True)() for path in paths if path]
    if len(graphs) < 2 or not (common := list(_common_tensors(*graphs))):
        return
    marked = [ModifyOutputs(graph, common, copy=True)().SerializeToString() for graph in graphs]
    made_by = _makers(graphs[1])
    outputs = [side.outputs(name, calls, graph) for side, graph in zip(sides, marked, strict=True)]
    for errors in _errors(name, calls, outputs, tolerance):
        yield errors.model_copy(update={"made_by": made_by.get(errors.tensor, "")})


def _errors(
    engine: str,
    calls: Iterable[EngineCall],
    outputs: Sequence[Sequence[Mapping[str, Array]]],
    tolerance: Tolerance,
) -> Iterator[TensorErrors]:
    """Yield the errors of each call's tensors that both sides produce, without padding."""
    for call, own, reference in zip(calls, *outputs, strict=True):
        for name in (name for name in reference if name in own):
            actual, expected = call.valid(name, own[name]), call.valid(name, reference[name])
            if actual is not None and expected is not None:
                yield tensor_errors(engine, name, call.step, actual, expected, tolerance)


@np.errstate(all="ignore")  # NaN and infinity diverge
def tensor_errors(
    engine: str, name: str, step: int, own: Array, reference: Array, tolerance: Tolerance
) -> TensorErrors:
    """Compare one tensor of a call with its reference; ``tolerance`` is relative to its maximum.

    Raises SkipDecError if their shapes differ.
    """
    if own.shape != reference.shape:
        raise SkipDecError(
            f"tensor {name}", f"is {own.shape} on one side and {reference.shape} on the other"
        )
    largest = float(np.abs(reference).max(initial=0))
    sides = (IterationResult({name: own}), IterationResult({name: reference}))
    compare = SimpleCompareFunc(atol=tolerance.largest * largest, rtol=0.0, check_error_stat="max")
    found = compare(*sides)[name]
    by_median = SimpleThreshold("median", atol=tolerance.median * largest, rtol=0.0)
    return TensorErrors(
        engine=engine,
        tensor=name,
        step=step,
        largest_value=largest,
        max_absolute=found.max_absdiff,
        mean_absolute=found.mean_absdiff,
        median_absolute=found.median_absdiff,
        cosine_similarity=CosineSimilarityCompareFunc()(*sides)[name].cosine_similarity,
        tolerance=tolerance.largest,
        median_tolerance=tolerance.median,
        diverges=not (math.isfinite(largest) and found and by_median.passed(found.metric_values())),
    )


def _common_tensors(graph: onnx.ModelProto, reference: onnx.ModelProto) -> Iterator[str]:
    """Yield the tensors that both graphs compute under one name, in the order of ``reference``.

    Graphs lowered from one canonical graph keep its names. Automatic names count only if the
    nodes are the same.
    """
    ours, theirs = (
        [(node.op_type, tuple(node.input), tuple(node.output)) for node in each.graph.node]
        for each in (graph, reference)
    )
    made = {name for *_, outputs in ours for name in outputs if name}
    for name in (name for *_, outputs in theirs for name in outputs):
        if name in made and (ours == theirs or not _AUTOMATIC.fullmatch(name)):
            yield name


def _makers(graph: onnx.ModelProto) -> dict[str, str]:
    """Return the node that computes each tensor, with its parameters: ``MatMul fc2.weight``."""
    parameters = {tensor.name for tensor in graph.graph.initializer if "." in tensor.name}
    return {
        name: " ".join((node.op_type, *(each for each in node.input if each in parameters)))
        for node in graph.graph.node
        for name in node.output
    }
