"""Evaluate the table cells of one model: texts, scores and times, kept beside its bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from reproduction.columns import Depth, skipdecode
from reproduction.config import MIXTURE, UNTUNED, ReproductionConfig
from reproduction.runs import Cell, Run, e2e_data
from skipdec.calib.evaluation.bootstrap import Bootstrap
from skipdec.calib.evaluation.config import BundleChoice, EvaluationConfig, MetricOptions
from skipdec.calib.evaluation.evaluation import Row, evaluate
from skipdec.engines.bundle import EngineBundle, replace_file
from skipdec.engines.manifest import json_digest
from skipdec.runtime.generator import OpenGenerator
from skipdec.runtime.schedule.text import format_schedule

RESAMPLED = ("bleu", "rouge_l")  # metrics whose resamples are all kept

# A speed-up whose times were disturbed is NaN, and is read back as such.
_STORED = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class CellResult(BaseModel):
    """Result of one model of one seed in one cell of the table."""

    model_config = _STORED

    seed: int
    column: str
    speedup: int
    schedule: str
    num_prompts: int
    nominal_depth: float
    figures: dict[str, float]  # by metric
    resampled: dict[str, list[float]]  # metrics in RESAMPLED, with the same draws in all cells
    measured_speedup: float  # wall-clock at full depth, with as many tokens ÷ at the schedule

    @property
    def cell(self) -> Cell:
        """The result's place in the table."""
        return Cell(self.column, self.speedup)


class _Results(BaseModel):
    model_config = _STORED

    key: str
    cells: list[CellResult]


def evaluate_run(
    config: ReproductionConfig, run: Run, horizon: int, open_generator: OpenGenerator
) -> list[CellResult]:
    """Evaluate the bundle of ``run`` at its schedule, or base and mixture at all presets.

    Full depth, which base and mixture also report, alternates with the schedules batch by batch.
    The result is kept beside the bundle and reused while bundle, prompts and options are the same.
    """
    evaluation = _evaluation(config, run, horizon)
    bundle = EngineBundle.open(run.bundle)
    options = config.model_dump(mode="json", include={"device", "limit", "resamples"})
    key = json_digest(
        {
            **options,
            "dev": sha256(config.dev.read_bytes()).hexdigest(),
            "bundle": bundle.manifest.digest,
            "schedules": [bundle.schedule_document, *evaluation.schedules],
            "batch_size": config.evaluation_batch_size,
            "fields": sorted(CellResult.model_fields),
        }
    )
    path = run.bundle.with_name(f"{run.name}.evaluation.json")
    cells = _kept(path, key)
    if cells is None:
        cells = _cells(config, run, evaluation, open_generator)
        replace_file(path, _Results(key=key, cells=cells).model_dump_json().encode())
    return [
        cell.model_copy(update={"column": other.column})
        for cell in cells
        for other in run.cells
        if other.speedup == cell.speedup
    ]


def _kept(path: Path, key: str) -> list[CellResult] | None:
    """Return the results in ``path``; None if missing, different or of another version."""
    if not path.is_file():
        return None
    document = json.loads(path.read_bytes())
    return _Results.model_validate(document).cells if document["key"] == key else None


def _evaluation(config: ReproductionConfig, run: Run, horizon: int) -> EvaluationConfig:
    presets = tuple(
        skipdecode(Depth(cell.speedup, config.num_layers, horizon))
        for cell in run.cells
        if cell.column in (UNTUNED, MIXTURE) and cell.speedup > 1
    )
    return EvaluationConfig(
        bundles=(BundleChoice(run.name, run.bundle),),
        data=e2e_data(config, config.dev),
        schedules=presets,
        limit=config.limit,
        batch_size=config.evaluation_batch_size,
        metrics=MetricOptions(lowercase=True),
        resamples=1,  # the table's resamples are drawn below, and kept
        seconds=0,  # one pass is enough for this many prompts
        equal_lengths=True,  # a bundle tuned to skip may have lost the ability to end at full depth
    )


def _cells(
    config: ReproductionConfig,
    run: Run,
    evaluation: EvaluationConfig,
    open_generator: OpenGenerator,
) -> list[CellResult]:
    """Return one result for each speed-up of the run; the caller sets the columns."""
    found = evaluate(evaluation, open_generator)
    bootstrap = Bootstrap(len(found.prompts), resamples=config.resamples, seed=0)
    by_speedup = {cell.speedup: cell for cell in run.cells}
    rows = found.rows if 1 in by_speedup else found.rows[1:]  # full depth comes first
    results = []
    for cell, row in zip(by_speedup.values(), rows, strict=True):
        samples = {
            name: bootstrap.sample(found.metrics[name], row.run.outcomes) for name in RESAMPLED
        }
        resampled = {name: sample.resampled.tolist() for name, sample in samples.items()}
        results.append(_result(run, cell, row, resampled, len(found.prompts)))
    return results


def _result(
    run: Run, cell: Cell, row: Row, resampled: Mapping[str, list[float]], num_prompts: int
) -> CellResult:
    return CellResult(
        seed=run.seed,
        column=cell.column,
        speedup=cell.speedup,
        schedule=format_schedule(row.run.schedule),
        num_prompts=num_prompts,
        nominal_depth=row.run.schedule.average_budget(),
        figures={name: figure.estimate.value for name, figure in row.figures.items()},
        resampled=dict(resampled),
        measured_speedup=row.speedup.value,
    )
