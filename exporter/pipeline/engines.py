"""Builds a bundle's engines one after another, or several at once, and resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TypeVar

import onnx_ir as ir

from ...engines.manifest import EngineKind, EngineSpec, FileRecord, PrecisionSpec
from ...engines.trt.build import PlanReport
from ..architecture.architecture import engine_parameters
from ..building.canonical import CanonicalEngine
from ..building.compile import Compiler, OnPlanProgress
from ..building.engine import BuiltEngine, build_engine
from ..building.journal import Finished, Journal, content_key, graph_digest
from ..config import CANONICAL
from ..quantization.migration import migrated_reader
from .plan import ExportPlan, PlannedEngine
from .report import EngineReport

T = TypeVar("T")


@dataclass(frozen=True)
class FinishedEngine:
    """An engine for the plan's target, and its canonical form where that was written too.

    ``files`` are those of the target, ``canonical_files`` the others.
    """

    report: EngineReport
    spec: EngineSpec
    files: tuple[FileRecord, ...]
    canonical: EngineSpec | None = None
    canonical_files: tuple[FileRecord, ...] = ()


class EngineBuilds:
    """Turns traced graphs into the engines of ``plan`` under ``directory``.

    ``graphs`` holds the canonical graph of each kind. Engines that the directory's journal knows,
    with the same content key and intact files, are taken as they are. ``on_progress`` is told of
    TensorRT's steps, from any thread.
    """

    def __init__(
        self,
        plan: ExportPlan,
        graphs: Mapping[EngineKind, ir.Model],
        directory: Path,
        on_progress: OnPlanProgress,
    ) -> None:
        self._plan = plan
        self._graphs = graphs
        self._digests = {kind: graph_digest(graph) for kind, graph in graphs.items()}
        self._directory = directory
        self._journal = Journal(directory)
        self._cancelled = Event()
        self._compiler = None
        if plan.compilation is not None:
            self._compiler = Compiler(
                plan.compilation,
                plan.checkpoint.model,
                directory,
                self._journal,
                unless(self._cancelled, on_progress),
            )

    def run(self, jobs: int) -> Iterator[FinishedEngine]:
        """Build all engines, ``jobs`` at once, and yield each as it is finished, in any order.

        An error or a KeyboardInterrupt starts no further engine; of those under way, TensorRT's
        builders are stopped and the rest are finished.
        """
        yield from run_jobs(self._finish, self._plan.engines, jobs, self._cancelled)

    def _finish(self, engine: PlannedEngine) -> FinishedEngine:
        start = perf_counter()
        plan = self._plan
        canonical = None
        resumed = True
        if self._compiler is not None or plan.canonical_size:
            float_precision = PrecisionSpec(dtype=plan.precision.dtype)
            canonical, resumed = self._build_or_take(engine, CANONICAL, float_precision)
        plans: tuple[PlanReport, ...] = ()
        if self._compiler is not None:
            assert canonical is not None
            source = CanonicalEngine(canonical.spec, canonical.files, self._directory)
            compiled = self._compiler.compile(source)
            spec, files, plans = compiled.spec, compiled.files, compiled.plans
            resumed = resumed and compiled.resumed
        else:
            built, resumed = self._build_or_take(engine, plan.target, plan.precision)
            spec, files = built.spec, built.files
        canonical_files = () if canonical is None else canonical.files
        kept = (*files, *canonical_files) if plan.canonical_size else files
        report = EngineReport(
            name=engine.name,
            size=sum(record.size for record in kept),
            seconds=perf_counter() - start,
            resumed=resumed,
            plans=plans,
        )
        canonical_spec = None if canonical is None else canonical.spec
        return FinishedEngine(report, spec, files, canonical_spec, canonical_files)

    def _build_or_take(
        self, engine: PlannedEngine, target: str, precision: PrecisionSpec
    ) -> tuple[BuiltEngine, bool]:
        """The ONNX engine, and whether an interrupted run had built it."""
        checkpoint, migration = self._plan.checkpoint, self._plan.migration
        factors = {} if migration is None else migration.of(engine.name)
        key = content_key(
            engine.name,
            target,
            self._digests[engine.kind],
            engine_parameters(engine.kind, checkpoint.model, engine.layer_index),
            checkpoint.model,
            precision,
            checkpoint.reader,
            factors,
        )
        if (finished := self._journal.finished(key)) is not None:
            return BuiltEngine(EngineSpec.model_validate(finished.facts), finished.files), True
        built = build_engine(
            self._graphs[engine.kind],
            engine.kind,
            engine.layer_index,
            checkpoint.model,
            precision,
            target,
            migrated_reader(
                checkpoint.reader, factors, engine.kind, engine.layer_index, checkpoint.model
            ),
            self._directory,
        )
        self._journal.record(key, Finished(built.spec.model_dump(mode="json"), built.files))
        return built, False


class Cancelled(Exception):  # noqa: N818  (not an error: somebody else's error ends the run)
    """Ends a build whose result nobody waits for."""


def unless(cancelled: Event, on_progress: OnPlanProgress) -> OnPlanProgress:
    """``on_progress``, raising Cancelled in its place once ``cancelled`` is set."""

    def report(plan: str, phase: str, step: int, steps: int) -> None:
        if cancelled.is_set():
            raise Cancelled
        on_progress(plan, phase, step, steps)

    return report


def run_jobs(
    work: Callable[[T], FinishedEngine], items: Sequence[T], jobs: int, cancelled: Event
) -> Iterator[FinishedEngine]:
    """Do ``work`` on every item, ``jobs`` at once, and yield the results as they come.

    When one fails, or the caller stops, no further item is begun and ``cancelled`` is set for
    those under way.
    """
    if jobs == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(jobs, thread_name_prefix="build") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            cancelled.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
