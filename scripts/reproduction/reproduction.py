"""The paper's table, made again: models of several seeds, tuned alike, evaluated alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from reproduction.config import ReproductionConfig
from reproduction.evaluation import CellResult, evaluate_run
from reproduction.runs import Run, base_run, e2e_data, tuned_runs
from reproduction.worker import is_made, make, prepare_process
from skipdec.calib.data.data import load_examples
from skipdec.calib.evaluation.evaluate import OpenGenerator
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.work import REPORT_NAME
from skipdec.engines.errors import UsageError
from skipdec.engines.host.processor import available_cores


class ReproductionEvents:
    """Receives what a reproduction does and ignores it; subclass to show it."""

    def planned(self, runs: Sequence[Run], *, missing: int) -> None:
        """These models are needed; so many of them are not there yet."""

    def made(self, run: Run, seconds: float) -> None:
        """One model is tuned and exported."""

    def evaluated(self, run: Run, results: Sequence[CellResult]) -> None:
        """One model's cells are known."""


def reproduce(
    config: ReproductionConfig, open_generator: OpenGenerator, events: ReproductionEvents
) -> list[CellResult]:
    """Make every model that is not there yet, evaluate it, and return all cells of all seeds.

    ``config.jobs`` models are tuned at once, in processes of their own that share the cores out;
    evaluation runs alone, since it measures times. An interrupted run goes on where it was.

    Raises UsageError before any work for data that can't be read, by line, for a work directory
    that can't be written, and for models there that other options made.
    """
    _check(config)
    bases = [base_run(config, seed) for seed in config.seeds]
    with _processes(config) as executor:
        _make_all(executor, bases, events)
        horizons = {base.seed: _horizon(base) for base in bases}
        runs = [run for seed in horizons for run in tuned_runs(config, seed, horizons[seed])]
        runs.sort(key=partial(_turn, config))
        _make_all(executor, runs, events)
    results = []
    for run in (*bases, *runs):
        cells = evaluate_run(config, run, horizons[run.seed], open_generator)
        events.evaluated(run, cells)
        results += cells
    return results


def _horizon(base: Run) -> int:
    """The median completion of the training data, in tokens of ``base``, which is there."""
    report = TuningReport.model_validate_json((base.checkpoint / REPORT_NAME).read_bytes())
    return report.data.median_completion


def _turn(config: ReproductionConfig, run: Run) -> tuple[int, int, int]:
    """Column by column, a row of all seeds after the other; the control comes first."""
    cell = run.cells[0]
    column = config.columns.index(cell.column) if cell.column in config.columns else -1
    return column, cell.speedup, run.seed


def _check(config: ReproductionConfig) -> None:
    for path in (config.train, config.dev):
        load_examples(e2e_data(path))
    if config.work.exists() and not config.work.is_dir():
        raise UsageError(f"work {config.work}", "is a file; name a directory")
    for seed in config.seeds:
        Path(config.work, f"seed-{seed}").mkdir(parents=True, exist_ok=True)


@contextmanager
def _processes(config: ReproductionConfig) -> Iterator[Executor]:
    """Processes that share the cores; what waits is dropped after an error."""
    threads = max(1, available_cores() // config.jobs)
    executor = ProcessPoolExecutor(
        config.jobs, get_context("spawn"), initializer=prepare_process, initargs=(threads,)
    )
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _make_all(executor: Executor, runs: Sequence[Run], events: ReproductionEvents) -> None:
    missing = [run for run in runs if not is_made(run)]
    events.planned(runs, missing=len(missing))
    futures = {executor.submit(make, run): run for run in missing}
    for future in as_completed(futures):
        events.made(futures[future], future.result())


class ReproductionLines(ReproductionEvents):
    """Prints how many models are to come, then each as it is made and evaluated."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def planned(self, runs: Sequence[Run], *, missing: int) -> None:
        """How much is left to do."""
        self._line(f"{len(runs)} models, {missing} of them to make")

    def made(self, run: Run, seconds: float) -> None:
        """One more is there."""
        self._line(f"seed {run.seed}, {run.name}: tuned and exported in {seconds:.0f} s")

    def evaluated(self, run: Run, results: Sequence[CellResult]) -> None:
        """The quality and speed of each cell."""
        for result in results:
            figures = result.figures
            self._line(
                f"seed {result.seed}, {result.column} {result.speedup}x: "
                f"BLEU {figures['bleu']:.1f}, {figures['realised_depth']:.2f} layers, "
                f"{result.measured_speedup:.2f} times as fast"
            )

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
