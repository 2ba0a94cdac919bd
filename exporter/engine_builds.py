"""Builds a bundle's engines one after another, or several at once, and resumes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import onnx_ir as ir

from ..engines.manifest import EngineKind, EngineSpec, FileRecord, PrecisionSpec
from .build import BuiltEngine, build_engine
from .content_key import content_key, graph_digest
from .journal import Journal
from .plan import ExportPlan, PlannedEngine
from .report import EngineReport
from .weights import engine_parameters

CANONICAL = "canonical"


@dataclass(frozen=True)
class FinishedEngine:
    """An engine for the plan's target and, where it is kept, its canonical form."""

    report: EngineReport
    spec: EngineSpec
    canonical: EngineSpec | None
    files: tuple[FileRecord, ...]


class EngineBuilds:
    """Turns traced graphs into the engines of ``plan`` under ``directory``.

    ``graphs`` holds the canonical graph of each kind. Engines that the directory's journal knows,
    with the same content key and intact files, are taken as they are.
    """

    def __init__(
        self, plan: ExportPlan, graphs: Mapping[EngineKind, ir.Model], target: str, directory: Path
    ) -> None:
        self._plan = plan
        self._graphs = graphs
        self._digests = {kind: graph_digest(graph) for kind, graph in graphs.items()}
        self._target = target
        self._directory = directory
        self._journal = Journal(directory)
        self._journal_lock = threading.Lock()

    def run(self, jobs: int) -> Iterator[FinishedEngine]:
        """Build all engines, ``jobs`` at once, and yield each as it is finished, in any order.

        An error or a KeyboardInterrupt starts no further engine; those under way are finished.
        """
        if jobs == 1:
            yield from map(self._finish, self._plan.engines)
            return
        with ThreadPoolExecutor(jobs, thread_name_prefix="build") as pool:
            futures = [pool.submit(self._finish, engine) for engine in self._plan.engines]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _finish(self, engine: PlannedEngine) -> FinishedEngine:
        start = perf_counter()
        built, resumed = self._build_or_take(engine, self._target, self._plan.precision)
        files, canonical = built.files, None
        if self._plan.canonical_size:
            float_precision = PrecisionSpec(dtype=self._plan.precision.dtype)
            kept, _ = self._build_or_take(engine, CANONICAL, float_precision)
            files, canonical = (*files, *kept.files), kept.spec
        report = EngineReport(
            name=engine.name,
            size=sum(record.size for record in files),
            seconds=perf_counter() - start,
            resumed=resumed,
        )
        return FinishedEngine(report, built.spec, canonical, files)

    def _build_or_take(
        self, engine: PlannedEngine, target: str, precision: PrecisionSpec
    ) -> tuple[BuiltEngine, bool]:
        """The engine, and whether an interrupted run had built it."""
        checkpoint = self._plan.checkpoint
        key = content_key(
            engine.name,
            target,
            self._digests[engine.kind],
            engine_parameters(engine.kind, checkpoint.model, engine.layer_index),
            checkpoint.model,
            precision,
            checkpoint.reader,
        )
        if (built := self._journal.finished(key)) is not None:
            return built, True
        built = build_engine(
            self._graphs[engine.kind],
            engine.kind,
            engine.layer_index,
            checkpoint.model,
            precision,
            target,
            checkpoint.reader,
            self._directory,
        )
        with self._journal_lock:
            self._journal.record(key, built)
        return built, False
