"""Reproduce the paper's table: tune and evaluate models of several seeds in the same way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from multiprocessing import get_context

from reproduction.config import ReproductionConfig
from reproduction.evaluation import CellResult, evaluate_run
from reproduction.runs import Run, base_run, e2e_data, tuned_runs
from reproduction.worker import is_made, make, prepare_process
from skipdec.calib.data.data import load_examples
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.work import REPORT_NAME
from skipdec.engines.bundle import replace_file
from skipdec.engines.documents import canonical_text, read_json
from skipdec.engines.errors import UsageError
from skipdec.engines.host.events import Events
from skipdec.engines.host.processor import available_cores
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource
from skipdec.runtime.generator import OpenGenerator


def reproduce(
    config: ReproductionConfig, open_generator: OpenGenerator, events: Events | None = None
) -> list[CellResult]:
    """Make every missing model, evaluate it, and return all cells of all seeds.

    ``config.jobs`` models are tuned at once, in processes that divide the cores; evaluation runs
    alone, because it measures times. An interrupted run continues.

    Raises UsageError before any work, by line, for data that can't be read, and for a work
    directory that can't be written or has models made with other options, data or bases.
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
    """Return the length of the median training completion, in tokens of the existing ``base``."""
    report = TuningReport.model_validate_json((base.checkpoint / REPORT_NAME).read_bytes())
    return report.data.median_completion


def _turn(config: ReproductionConfig, run: Run) -> tuple[int, int, int]:
    """Return a sort key: by column, then by row with all seeds, the control first."""
    cell = run.cells[0]
    column = config.columns.index(cell.column) if cell.column in config.columns else -1
    return column, cell.speedup, run.seed


def _check(config: ReproductionConfig) -> None:
    for path in (config.train, config.dev):
        load_examples(e2e_data(config, path))
    if config.work.exists() and not config.work.is_dir():
        raise UsageError(f"work {config.work}", "is a file; name a directory")
    for seed in config.seeds:
        base = base_run(config, seed).checkpoint
        base.parent.mkdir(parents=True, exist_ok=True)
        if not (base / REPORT_NAME).is_file() and list(base.parent.glob(f"*/{REPORT_NAME}")):
            raise UsageError(
                str(base.parent),
                "has models whose base is gone; delete them, or take another work directory",
            )
    _check_inputs(config)


def _check_inputs(config: ReproductionConfig) -> None:
    """Record the inputs of the models in the work directory, or compare them with the record."""
    found = {"train": sha256(config.train.read_bytes()).hexdigest(), "model": None}
    if config.model is not None:
        found["model"] = open_checkpoint(CheckpointSource(model=str(config.model))).content
    path = config.work / "inputs.json"
    if not path.exists():
        replace_file(path, canonical_text(found).encode())
        return
    made = read_json(path, UsageError)
    if problems := [
        f"`{name}` had other content when the models in {config.work} were made; take that, or "
        "another work directory"
        for name, digest in found.items()
        if not isinstance(made, dict) or made.get(name) != digest
    ]:
        raise UsageError("reproduction", *problems)


@contextmanager
def _processes(config: ReproductionConfig) -> Iterator[Executor]:
    """Run the processes that make models."""
    executor = ProcessPoolExecutor(config.jobs, get_context("spawn"), initializer=prepare_process)
    try:
        yield executor
    finally:
        executor.shutdown()


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
    waiting, running = deque(missing), dict[Future[float], Run]()
    while waiting or running:
        while waiting and len(running) < config.jobs:  # an executor would not drop what it holds
            run = waiting.popleft()
            running[executor.submit(make, run, threads)] = run
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            run, seconds = running.pop(future), future.result()
            events.advance(
                f"seed {run.seed}, {run.name}", detail=f"tuned and exported in {seconds:.0f} s"
            )
