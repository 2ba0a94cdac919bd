"""Reproduce the paper's table: models of several seeds, all tuned and evaluated alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from reproduction.config import ReproductionConfig
from reproduction.evaluation import CellResult, evaluate_run
from reproduction.runs import Run, base_run, e2e_data, tuned_runs
from reproduction.worker import is_made, make, prepare_process
from skipdec.calib.data.data import load_examples
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.work import REPORT_NAME
from skipdec.engines.errors import UsageError
from skipdec.engines.host.events import Events
from skipdec.engines.host.processor import available_cores
from skipdec.runtime.generator import OpenGenerator


def reproduce(
    config: ReproductionConfig, open_generator: OpenGenerator, events: Events | None = None
) -> list[CellResult]:
    """Make every missing model, evaluate it, and return all cells of all seeds.

    ``config.jobs`` models are tuned at once, in processes that divide the cores; evaluation runs
    alone, since it measures times. An interrupted run continues.

    Raises UsageError before any work for data that can't be read, by line, for a work directory
    that can't be written, and for existing models made with other options.
    """
    events = events or Events()
    _check(config)
    bases = [base_run(config, seed) for seed in config.seeds]
    with _processes(config) as executor:
        _make_all(config, "tuning bases", executor, bases, events)
        horizons = {base.seed: _horizon(base) for base in bases}
        runs = [run for seed in horizons for run in tuned_runs(config, seed, horizons[seed])]
        runs.sort(key=partial(_turn, config))
        _make_all(config, "tuning", executor, runs, events)
    results = []
    events.stage("evaluating", len(bases) + len(runs))
    for run in (*bases, *runs):
        cells = evaluate_run(config, run, horizons[run.seed], open_generator)
        for cell in cells:
            events.note(_describe(cell))
        events.advance(run.name)
        results += cells
    return results


def _describe(result: CellResult) -> str:
    """Describe quality and speed of one cell."""
    return (
        f"seed {result.seed}, {result.column} {result.speedup}x: "
        f"BLEU {result.figures['bleu']:.1f}, {result.figures['realised_depth']:.2f} layers, "
        f"{result.measured_speedup:.2f} times as fast"
    )


def _horizon(base: Run) -> int:
    """Return the median completion of the training data, in tokens of the existing ``base``."""
    report = TuningReport.model_validate_json((base.checkpoint / REPORT_NAME).read_bytes())
    return report.data.median_completion


def _turn(config: ReproductionConfig, run: Run) -> tuple[int, int, int]:
    """Return the order: column by column, one row of all seeds after another, the control first."""
    cell = run.cells[0]
    column = config.columns.index(cell.column) if cell.column in config.columns else -1
    return column, cell.speedup, run.seed


def _check(config: ReproductionConfig) -> None:
    for path in (config.train, config.dev):
        load_examples(e2e_data(config, path))
    if config.work.exists() and not config.work.is_dir():
        raise UsageError(f"work {config.work}", "is a file; name a directory")
    for seed in config.seeds:
        Path(config.work, f"seed-{seed}").mkdir(parents=True, exist_ok=True)


@contextmanager
def _processes(config: ReproductionConfig) -> Iterator[Executor]:
    """Run processes for the models; pending work is dropped after an error."""
    executor = ProcessPoolExecutor(config.jobs, get_context("spawn"), initializer=prepare_process)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _make_all(
    config: ReproductionConfig,
    stage: str,
    executor: Executor,
    runs: Sequence[Run],
    events: Events,
) -> None:
    missing = [run for run in runs if not is_made(run)]
    events.note(f"{len(runs)} models, {len(missing)} of them to make")
    events.stage(stage, len(missing))
    threads = max(1, available_cores() // max(1, min(config.jobs, len(missing))))
    futures = {executor.submit(make, run, threads): run for run in missing}
    for future in as_completed(futures):
        run, seconds = futures[future], future.result()
        events.advance(
            f"seed {run.seed}, {run.name}", detail=f"tuned and exported in {seconds:.0f} s"
        )
