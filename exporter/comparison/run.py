"""Runs the engines of both sides on the same calls and measures where they diverge."""

from __future__ import annotations

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

from ...engines.backends.recording import Recording
from ...engines.errors import SkipDecError, UsageError
from ...engines.host.events import Events
from ...engines.manifest import EngineKind
from ...engines.memory import Array
from ..verification.tolerance import Tolerance, quantization_of
from .config import CompareConfig
from .inputs import EngineCall, Inputs, RandomInputs, RecordedInputs
from .report import ComparisonReport, EngineComparison, TensorErrors
from .sides import Result, Side

# Changes of outputs by rounding the weights of one engine, as fractions of the largest value.
_ROUNDED: Mapping[str, Tolerance] = {
    "none": Tolerance(0, 0),
    "int8": Tolerance(5e-2, 1e-2),
    "int8-block": Tolerance(5e-2, 1e-2),
    "fp8": Tolerance(2e-1, 5e-2),
    "int4": Tolerance(3e-1, 5e-2),
}
_EDGES = tuple(10.0**exponent for exponent in range(-8, 1))  # of histograms
# Names that torch's exporter and onnx-ir generate, which mean nothing in another graph.
_AUTOMATIC = re.compile(r"val_\d+")


class Comparison:
    """A comparison of two sides of one model."""

    def __init__(
        self, config: CompareConfig, subject: Side, reference: Side, events: Events
    ) -> None:
        self._config = config
        self._sides = (subject, reference)
        self._events = events
        self._wanted = _wanted_engines(config.layers, subject)
        self._recording = None if config.inputs is None else Recording.open(config.inputs)
        self._inputs = self._make_inputs()
        self._own_inputs = self._make_inputs() if config.stitched else self._inputs
        if not any(map(self._inputs.positions, self._wanted)):
            raise UsageError(
                "recording", f"{config.inputs} has no call of {', '.join(self._wanted)}"
            )

    def run(self) -> ComparisonReport:
        """Compare engine by engine; engines that were not asked for only produce inputs."""
        subject, reference = self._sides
        names = list(subject.engines)
        names = names[: names.index(self._wanted[-1]) + 1]
        if self._recording is not None:
            names = self._wanted
        engines: list[EngineComparison] = []
        self._events.stage("comparing", len(names))
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):  # Polygraphy logs to stdout
            for name in names:
                if name in self._wanted:
                    looks_inside = not any(engine.first_departing for engine in engines)
                    engines.append(self._compare(name, looks_inside=looks_inside))
                else:
                    for _ in self._outputs(name):
                        pass
                self._events.advance(name)
        return ComparisonReport(
            subject=subject.name,
            reference=reference.name,
            inputs=self._inputs.description,
            stitched=self._config.stitched,
            engines=tuple(engines),
            notes=tuple(self._notes(engines)),
        )

    def _make_inputs(self) -> Inputs:
        subject, reference = self._sides
        if self._recording is not None:
            return RecordedInputs(self._recording, [reference.engines[n] for n in self._wanted])
        builds = [build for side in self._sides if (build := side.bundle.manifest.build)]
        model = subject.bundle.manifest.model
        return RandomInputs(
            model,
            self._config.seed,
            min(
                (min(build.max_batch_size, build.max_prefill_rows) for build in builds),
                default=model.max_seq_len,
            ),
            min((build.max_prompt_len for build in builds), default=model.max_seq_len),
        )

    def _compare(self, name: str, *, looks_inside: bool) -> EngineComparison:
        tolerance = self._tolerance(self._sides[0].engines[name].kind)
        made: list[tuple[EngineCall, ...]] = []
        outputs: list[TensorErrors] = []
        for results in self._outputs(name):
            made.append(tuple(call for call, _ in results))
            outputs += _errors(results, tolerance)
        inner: tuple[TensorErrors, ...] = ()
        if looks_inside and any(each.departs for each in outputs):
            inner = tuple(self._inner_errors(name, made, tolerance))
        return EngineComparison(engine=name, calls=len(made), outputs=tuple(outputs), inner=inner)

    def _outputs(self, name: str) -> Iterator[Sequence[Result]]:
        """Run an engine on both sides, call by call; later calls read what it writes."""
        every = (self._own_inputs, self._inputs)
        calls = [i.calls(side.engines[name]) for i, side in zip(every, self._sides, strict=True)]
        for own, reference in self._run(name, calls):
            self._inputs.absorb(*reference)
            if self._own_inputs is not self._inputs:
                self._own_inputs.absorb(*own)
            yield own, reference

    def _run(
        self,
        name: str,
        calls: Iterable[Iterable[EngineCall]],
        graphs: Sequence[bytes | None] = (None, None),
    ) -> Iterator[Sequence[Result]]:
        """Run an engine, or other graphs in its place, on the calls of each side."""
        if positions := self._inputs.positions(name):
            both = zip(self._sides, calls, graphs, strict=True)
            yield from zip(*(s.results(name, c, positions, g) for s, c, g in both), strict=True)

    def _inner_errors(
        self, name: str, made: Sequence[tuple[EngineCall, ...]], tolerance: Tolerance
    ) -> Iterator[TensorErrors]:
        """Repeat the calls with the tensors that both graphs have in common as outputs."""
        paths = [side.graph_path(name) for side in self._sides]
        graphs = [OnnxFromPath(str(path), ignore_external_data=True)() for path in paths if path]
        if len(graphs) < 2 or not (names := list(_common_tensors(*graphs))):
            return
        marked = [ModifyOutputs(graph, names, copy=True)().SerializeToString() for graph in graphs]
        made_by = _makers(graphs[1])
        for results in self._run(name, zip(*made, strict=True), marked):
            for errors in _errors(results, tolerance):
                yield errors.model_copy(update={"made_by": made_by.get(errors.tensor, "")})

    def _tolerance(self, kind: EngineKind) -> Tolerance:
        """Return the larger of both sides', or that of rounding if only one of them rounds."""
        if self._config.atol is not None:
            return Tolerance(self._config.atol, self._config.atol)
        allowed = [side.tolerance(kind) for side in self._sides]
        formats = {quantization_of(side.precision, kind) for side in self._sides}
        if len(formats) > 1:
            allowed += [_ROUNDED[each] for each in formats]
        return Tolerance(
            max(each.largest for each in allowed), max(each.median for each in allowed)
        )

    def _notes(self, engines: Sequence[EngineComparison]) -> Iterator[str]:
        if self._recording is not None and not self._recording.index.complete:
            yield "the recording is not complete: it reached its --record-limit"
        if silent := [engine.engine for engine in engines if not engine.calls]:
            yield f"not called in the recording, so not compared: {', '.join(silent)}"
        first = next((engine for engine in engines if engine.first_departing), None)
        if first is None:
            return
        if first.inner and not any(each.departs for each in first.inner):
            yield (
                f"{first.engine} diverges only while its inner tensors are not outputs: suspect a "
                "fusion of ONNX Runtime"
            )
        for side in self._sides:
            yield from side.changed_weights(first.engine)


def _wanted_engines(layers: Sequence[int], subject: Side) -> list[str]:
    """Return names in the order of a step. Raises UsageError for a layer that does not exist."""
    num_layers = subject.bundle.manifest.model.num_layers
    if unknown := [layer for layer in layers if not 0 <= layer < num_layers]:
        raise UsageError(
            "layer", f"is {', '.join(map(str, unknown))}; {subject.name} has 0 to {num_layers - 1}"
        )
    return [
        name for name, spec in subject.engines.items() if not layers or spec.layer_index in layers
    ]


def _errors(results: Sequence[Result], tolerance: Tolerance) -> Iterator[TensorErrors]:
    """Yield the errors of every tensor of a call that both sides produce, without padding."""
    (own_call, own), (call, reference) = results
    for name in (name for name in reference if name in own):
        actual, expected = own_call.valid(name, own[name]), call.valid(name, reference[name])
        if actual is not None and expected is not None:
            yield tensor_errors(name, call.step, actual, expected, tolerance)


@np.errstate(all="ignore")  # NaN and infinity diverge
def tensor_errors(
    name: str, step: int, own: Array, reference: Array, tolerance: Tolerance
) -> TensorErrors:
    """Compare one tensor of a call with its reference; ``tolerance`` is of the largest value.

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
    scaled = np.abs(np.subtract(own, reference, dtype=np.float32))
    scaled /= max(largest, float(np.finfo(np.float32).tiny))
    below = [np.count_nonzero(scaled < edge) for edge in _EDGES]
    return TensorErrors(
        tensor=name,
        step=step,
        largest_value=largest,
        max_absolute=found.max_absdiff,
        mean_absolute=found.mean_absdiff,
        median_absolute=found.median_absdiff,
        max_relative=found.max_reldiff,
        mean_relative=found.mean_reldiff,
        median_relative=found.median_reldiff,
        cosine_similarity=CosineSimilarityCompareFunc()(*sides)[name].cosine_similarity,
        tolerance=tolerance.largest,
        median_tolerance=tolerance.median,
        departs=not (found and by_median.passed(found.metric_values())),
        histogram=tuple(np.diff([0, *below, scaled.size]).tolist()),
    )


def _common_tensors(graph: onnx.ModelProto, reference: onnx.ModelProto) -> Iterator[str]:
    """Yield the tensors that both graphs make under one name, in the order of ``reference``.

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
    """Return the node that makes each tensor, with its parameters: ``MatMul fc2.weight``."""
    parameters = {tensor.name for tensor in graph.graph.initializer if "." in tensor.name}
    return {
        name: " ".join((node.op_type, *(each for each in node.input if each in parameters)))
        for node in graph.graph.node
        for name in node.output
    }
