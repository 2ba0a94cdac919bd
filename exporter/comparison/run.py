"""Runs the engines of both sides on the same calls and says where they part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polygraphy.logger import G_LOGGER

from ...engines.backends.recording import Recording
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.manifest import EngineKind
from ..verification.tolerance import Tolerance, quantization_of
from .config import CompareConfig
from .engine_run import EngineRun
from .graphs import common_tensors, load_graph, makers, with_outputs
from .inputs import Inputs, RandomInputs, RecordedInputs
from .measurement import measured
from .report import ComparisonReport, EngineComparison, TensorErrors
from .sides import Side

# What rounding the weights of one engine does to its outputs, as a fraction of the largest value.
_ROUNDED: Mapping[str, Tolerance] = {
    "none": Tolerance(0, 0),
    "int8": Tolerance(5e-2, 1e-2),
    "int8-block": Tolerance(5e-2, 1e-2),
    "fp8": Tolerance(2e-1, 5e-2),
    "int4": Tolerance(3e-1, 5e-2),
}


class Comparison:
    """Two sides that go together, and what they read."""

    def __init__(
        self, config: CompareConfig, subject: Side, reference: Side, events: Events
    ) -> None:
        self._config = config
        self._subject = subject
        self._reference = reference
        self._events = events
        self._wanted = _wanted_engines(config.layers, subject)
        self._recording = None if config.inputs is None else Recording.open(config.inputs)
        self._inputs = self._make_inputs()
        if not any(self._inputs.positions(reference.engines[name]) for name in self._wanted):
            raise UsageError(
                "recording", f"{config.inputs} has no call of {', '.join(self._wanted)}"
            )
        # Of the subject's own: what its engines wrote.
        self._own_inputs = self._make_inputs() if config.stitched else self._inputs

    def run(self) -> ComparisonReport:
        """Compare engine by engine; those that are not wanted only make inputs."""
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):  # Polygraphy logs to stdout
            return self._run()

    def _run(self) -> ComparisonReport:
        engines: list[EngineComparison] = []
        names = [
            name for name in self._subject.engines if self._makes_inputs or name in self._wanted
        ]
        names = names[: names.index(self._wanted[-1]) + 1]
        self._events.stage("comparing", len(names))
        for name in names:
            if name in self._wanted:
                compared = self._compare(
                    name, looks_inside=not any(e.first_departing for e in engines)
                )
                engines.append(compared)
            else:
                self._pass_through(name)
            self._events.advance(name)
        return ComparisonReport(
            subject=self._subject.name,
            reference=self._reference.name,
            inputs=self._describe_inputs(),
            stitched=self._config.stitched,
            engines=tuple(engines),
            notes=tuple(self._notes(engines)),
        )

    @property
    def _makes_inputs(self) -> bool:
        return self._recording is None

    def _make_inputs(self) -> Inputs:
        if self._recording is not None:
            return RecordedInputs(self._recording)
        builds = [side.bundle.manifest.build for side in (self._subject, self._reference)]
        rows = [min(build.max_batch_size, build.max_prefill_rows) for build in builds if build]
        lengths = [build.max_prompt_len for build in builds if build]
        model = self._subject.bundle.manifest.model
        return RandomInputs(
            model,
            self._config.seed,
            max_rows=min(rows, default=model.max_seq_len),
            max_prompt_len=min(lengths, default=model.max_seq_len),
        )

    def _describe_inputs(self) -> str:
        if self._recording is None:
            return f"random tokens, seed {self._config.seed}"
        index = self._recording.index
        return (
            f"recorded in {self._recording.directory}, of bundle {index.digest[:12]}, "
            f"{len(index.calls)} calls"
        )

    def _notes(self, engines: Sequence[EngineComparison]) -> Iterator[str]:
        if self._recording is not None and not self._recording.index.complete:
            yield "the recording is not complete: it reached its --record-limit"
        silent = [engine.engine for engine in engines if not engine.calls]
        if silent:
            yield f"not called in the recording, so not compared: {', '.join(silent)}"
        first = next((engine for engine in engines if engine.first_departing), None)
        if first is not None and first.inner and not any(each.departs for each in first.inner):
            yield (
                f"{first.engine} diverges only while its inner tensors are not outputs: a fusion "
                "of ONNX Runtime's is to be suspected"
            )
        if first is not None:
            for side in (self._subject, self._reference):
                yield from side.changed_weights(first.engine)

    def _pass_through(self, name: str) -> None:
        """Run an engine for what the next one reads."""
        runs = [EngineRun(self._reference, name, self._inputs, absorbs=True)]
        if self._own_inputs is not self._inputs:
            runs.append(EngineRun(self._subject, name, self._own_inputs, absorbs=True))
        for run in runs:
            for _ in run.results():
                pass

    def _compare(self, name: str, *, looks_inside: bool) -> EngineComparison:
        tolerance = self._tolerance(self._subject.engines[name].kind)
        own = EngineRun(
            self._subject, name, self._own_inputs, absorbs=self._own_inputs is not self._inputs
        )
        reference = EngineRun(self._reference, name, self._inputs, absorbs=True)
        if not reference.positions:
            return EngineComparison(engine=name, calls=0, outputs=())
        outputs = tuple(measured(own, reference, tolerance))
        inner: tuple[TensorErrors, ...] = ()
        if looks_inside and any(each.departs for each in outputs):
            inner = tuple(self._look_inside(own, reference, tolerance))
        return EngineComparison(
            engine=name, calls=len(reference.calls), outputs=outputs, inner=inner
        )

    def _look_inside(
        self, own: EngineRun, reference: EngineRun, tolerance: Tolerance
    ) -> Iterator[TensorErrors]:
        """The same calls again, with the tensors that both graphs have in common as outputs."""
        paths = [each.side.graph_path(each.spec) for each in (own, reference)]
        if None in paths:
            return
        graphs = [load_graph(path) for path in paths if path is not None]
        names = common_tensors(*graphs)
        if not names:
            return
        again, reference_again = (
            run.again(with_outputs(graph, names))
            for run, graph in zip((own, reference), graphs, strict=True)
        )
        made_by = makers(graphs[1])
        for errors in measured(again, reference_again, tolerance):
            yield errors.model_copy(update={"made_by": made_by.get(errors.tensor, "")})

    def _tolerance(self, kind: EngineKind) -> Tolerance:
        """The larger of both sides', with what rounding does where only one of them rounds."""
        if self._config.atol is not None:
            return Tolerance(self._config.atol, self._config.atol)
        sides = (self._subject, self._reference)
        allowed = [side.tolerance(kind) for side in sides]
        formats = {quantization_of(side.precision, kind) for side in sides}
        if len(formats) > 1:
            allowed += [_ROUNDED[each] for each in formats]
        return Tolerance(
            max(each.largest for each in allowed), max(each.median for each in allowed)
        )


def _wanted_engines(layers: Sequence[int], subject: Side) -> list[str]:
    """Names in the order of a step. Raises UsageError for a layer that there is not."""
    num_layers = subject.bundle.manifest.model.num_layers
    unknown = [layer for layer in layers if not 0 <= layer < num_layers]
    if unknown:
        raise UsageError(
            "layer", f"is {', '.join(map(str, unknown))}; {subject.name} has 0 to {num_layers - 1}"
        )
    return [
        name for name, spec in subject.engines.items() if not layers or spec.layer_index in layers
    ]
