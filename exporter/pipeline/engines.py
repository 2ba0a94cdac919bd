"""Sources of a bundle's ONNX engines: built from a checkpoint, or taken from another bundle."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path

import onnx_ir as ir

from ...engines.bundle import EngineBundle
from ...engines.host.process import collection_paused
from ...engines.host.signals import interrupts_deferred
from ...engines.manifest import NUM_JOINED, EngineKind, FloatType, ModelSpec, PrecisionSpec
from ...engines.memory import Array
from ...engines.targets import target_of
from ..architecture.architecture import engine_parameters
from ..architecture.weights import Parameter
from ..building.canonical import CanonicalGraph, canonical_engines
from ..building.engine import BuiltEngine, build_engine, encoded, write_engine
from ..building.journal import (
    COMPILING_TOOLS,
    Journal,
    content_key,
    graph_digest,
    tool_versions,
)
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.draft_layer import TrainedDraftLayer
from ..checkpoint.reader import CheckpointReader
from ..config import CANONICAL
from ..graphs.lowering import lowering_of
from ..quantization.migration import MIGRATION, Migration, migrated_reader
from .plan import EngineSource, PlannedEngine
from .report import Stages

_STOPPING = "interrupted: stops once this graph is traced; a second signal stops immediately"


class BundleEngines(EngineSource):
    """The canonical engines in ``bundle``, which stay there; others are written to ``directory``.

    Raises BundleError for a bundle that was exported without ``--keep-canonical``.
    """

    def __init__(self, bundle: EngineBundle, directory: Path) -> None:
        self.tool_versions = bundle.manifest.tool_versions | tool_versions(COMPILING_TOOLS)
        self._bundle = bundle
        self._directory = directory
        self._engines = {engine.spec.name: engine for engine in canonical_engines(bundle)}

    def provenance(self) -> dict[str, str]:
        """Return the provenance in the bundle's manifest.

        Raises BundleError if another bundle took its place: engines may have its weights.
        """
        self._bundle.check_same(EngineBundle.open(self._bundle.path))
        return self._bundle.manifest.source

    def engine(self, planned: PlannedEngine, form: str, precision: PrecisionSpec) -> BuiltEngine:
        """Return the canonical engine, or lower it, which is as fast as checking a finished one."""
        canonical = self._engines[planned.name]
        if form == CANONICAL:
            return canonical
        model = self._bundle.manifest.model
        source, spec = CanonicalGraph(canonical), canonical.spec
        lowered = lowering_of(form)(source.graph(), spec.kind, model, precision)

        def tensors(parameter: Parameter) -> dict[str, Array]:
            return encoded(parameter.name, source.read(parameter.name), lowered)

        return write_engine(
            lowered, spec.kind, spec.layer_index, model, form, tensors, self._directory
        )


class CheckpointEngines(EngineSource):
    """Builds a checkpoint's engines in ``directory``, with migrated weights if there are factors.

    The constructor traces the canonical graph of each kind of engine for each activation dtype in
    ``dtypes``; all layers share one. Engines in ``journal`` with the same content key and intact
    files are reused. ``draft`` is the draft layer of the bundle, if any.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtypes: Iterable[FloatType],
        migration: Migration | None,
        directory: Path,
        journal: Journal,
        stages: Stages,
        draft: TrainedDraftLayer | None,
    ) -> None:
        self.tool_versions = tool_versions()
        self._checkpoint = checkpoint
        self._draft = draft
        self._migration = migration
        self._directory = directory
        self._journal = journal
        self._graphs = {}
        traced = [(kind, checkpoint.model) for kind in EngineKind if kind not in NUM_JOINED]
        if draft is not None:
            traced += [(kind, draft.model) for kind in (*NUM_JOINED, EngineKind.HEAD)]
        wanted = [(kind, model, dtype) for dtype in sorted(dtypes) for kind, model in traced]
        with stages.stage("trace", len(wanted)), collection_paused():
            from ..graphs import trace  # noqa: F401  (imported before signals are deferred: slow)

            for kind, model, dtype in wanted:
                # torch would replace the exception of an interruption by its own.
                with interrupts_deferred(partial(stages.events.note, _STOPPING)):
                    graph = _canonical_graph(kind, model, dtype)
                self._graphs[_graph_key(kind, model, dtype)] = graph
                stages.events.advance(str(kind))
        self._digests = {each: graph_digest(graph) for each, graph in self._graphs.items()}

    def provenance(self) -> dict[str, str]:
        """Return the checkpoint's provenance and the factors' digest; hashes every tensor once."""
        source = self._checkpoint.source()
        return source if self._migration is None else source | {MIGRATION: self._migration.digest}

    def engine(self, planned: PlannedEngine, form: str, precision: PrecisionSpec) -> BuiltEngine:
        """Build the engine, or return the journal's."""
        kind, index = planned.kind, planned.layer_index
        is_wide = target_of(form).has_float32_activations
        model, reader = planned.drafted or self._checkpoint.model, self._reader(planned)
        traced = _graph_key(kind, model, "float32" if is_wide else precision.dtype)
        factors = {} if self._migration is None else self._migration.of(planned.name)
        key = content_key(
            planned.name,
            form,
            self._digests[traced],
            engine_parameters(kind, model, index),
            model,
            precision,
            reader,
            factors,
        )
        if (resumed := self._journal.built(key)) is not None:
            return resumed
        built = build_engine(
            self._graphs[traced],
            kind,
            index,
            model,
            precision,
            form,
            migrated_reader(reader, factors, kind, index, model),
            self._directory,
            is_draft=planned.is_draft,
        )
        self._journal.record(key, built)
        return built

    def _reader(self, planned: PlannedEngine) -> CheckpointReader:
        """Return the tensors of an engine: the checkpoint's, or those of the draft layer."""
        if not planned.is_draft:
            return self._checkpoint.reader
        assert self._draft is not None
        return self._draft.reader


def _graph_key(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> tuple[EngineKind, int, str]:
    """Return a key of the graphs of one export; heads differ by the number of tokens they score."""
    return kind, model.vocab_size if kind is EngineKind.HEAD else 0, dtype


@lru_cache(maxsize=2 * len(EngineKind))
def _canonical_graph(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    """Return ``trace_engine``'s result, cached for exports in several precisions."""
    from ..graphs.trace import trace_engine

    return trace_engine(kind, model, dtype)
