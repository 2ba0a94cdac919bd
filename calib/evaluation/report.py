"""The JSON document and plots of an evaluation, and the directory that contains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ...engines.bundle.place import Place
from ...engines.checking import expanded
from ...engines.documents import write_file
from ...engines.host.console import json_text
from ...engines.host.events import Events
from ...engines.host.installation import install_command, is_installed, own_version
from ...engines.host.processor import processor_name
from ...runtime.schedule.text import format_schedule
from ..pictures import Chart, Interval, Series, plot
from .bootstrap import Estimate
from .drafts import DraftRow
from .evaluation import Evaluation, Row
from .markdown import report_markdown
from .positions import PositionFigure

DOCUMENT, REPORT, PICTURE = "evaluation.json", "evaluation.md", "pareto.png"
POSITIONS_PICTURE = "positions.png"
_QUALITY = "bleu"


def report_document(evaluation: Evaluation, *, threads: int | None = None) -> dict[str, Any]:
    """Return everything as one object for `json_text`.

    ``threads`` is the caller's number of engine threads on a CPU; None if unknown.
    """
    return {
        "skipdec": own_version(),
        "processor": processor_name(),
        "threads": threads,
        "config": evaluation.config,
        "num_prompts": len(evaluation.prompts),
        "num_dropped": evaluation.num_dropped,
        "rows": [_row_document(row) for row in evaluation.rows],
        "drafts": [_draft_document(row) for row in evaluation.drafts],
        "averages": evaluation.averages,
        "examples": evaluation.examples,
    }


def _row_document(row: Row) -> dict[str, Any]:
    run, prepared = row.run, row.prepared
    manifest = prepared.bundle.manifest
    return {
        "bundle": row.label,
        "path": prepared.choice.path,
        "digest": manifest.digest,
        "target": manifest.target,
        "device": row.device,
        "precision": manifest.precision,
        "prompt_template": prepared.template.text,
        "max_tokens": prepared.max_tokens,
        "num_cut": prepared.num_cut,
        "schedule": run.name,
        "schedule_text": format_schedule(run.schedule),
        "num_layers": run.schedule.num_layers,
        "nominal_depth": run.schedule.average_budget(),
        "wall_seconds": run.wall_seconds,
        "chunk_seconds": run.chunk_seconds,
        "full_depth_seconds": run.full_depth_seconds,
        "generated_tokens": run.num_tokens,
        "speedup": run.speedup,
        "token_speedup": run.token_speedup,
        "metrics": row.figures,
        "positions": row.positions,
    }


def _draft_document(row: DraftRow) -> dict[str, Any]:
    run = row.run
    return {
        "bundle": row.prepared.choice.label,
        "path": row.prepared.choice.path,
        "draft": str(run.draft),
        "name": run.name,
        "num_texts": run.num_texts,
        "num_equal": run.num_equal,
        "tokens_per_pass": run.counts.tokens_per_pass,
        "acceptance": run.counts.acceptance,
        "gain": run.gain,
        "chunk_seconds": run.chunk_seconds,
        "full_depth_seconds": run.plain_seconds,
    }


def evaluation_place(output: Path) -> Place:
    """Return the place of the evaluation in ``output``."""
    return Place(expanded(output).absolute(), DOCUMENT, "an evaluation")


def pictures(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the pictures to draw: quality over speed if texts were generated, and positions."""
    names = [] if evaluation.config.score_only else [PICTURE]
    return (*names, *([POSITIONS_PICTURE] if evaluation.config.by_position else []))


def write_evaluation(
    directory: Path,
    evaluation: Evaluation,
    document: dict[str, Any],
    *,
    force: bool,
    events: Events | None = None,
) -> tuple[str, ...]:
    """Write evaluation.json, evaluation.md and, with matplotlib, the ``pictures``.

    Returns the names of the files and reports them to ``events``. An existing ``directory`` is
    replaced atomically, and only by a complete result. Raises the errors of ``Place.replaced``.
    """
    events, drawn = events or Events(), pictures(evaluation)
    with evaluation_place(directory).replaced(force=force) as partial:
        write_file(partial / DOCUMENT, json_text(document))
        write_file(partial / REPORT, report_markdown(evaluation))
        if is_installed("matplotlib"):
            if PICTURE in drawn:
                plot_pareto(evaluation, partial / PICTURE)
            if POSITIONS_PICTURE in drawn:
                plot_positions(evaluation, partial / POSITIONS_PICTURE)
        names = tuple(sorted(path.name for path in partial.iterdir()))
    events.note(f"wrote {', '.join(str(directory / name) for name in names)}")
    if missing := [name for name in drawn if name not in names]:
        pip = install_command("plot")
        events.warn(f"no {', '.join(missing)}: needs matplotlib, not installed here; run: {pip}")
    return names


def plot_pareto(evaluation: Evaluation, path: Path) -> None:
    """Plot BLEU over the speed-up of whole calls, one line per bundle, with intervals.

    Disturbed speed-ups are left out. Needs matplotlib.
    """
    bundles: dict[Path, list[Row]] = {}
    for row in evaluation.rows:
        if not row.speedup.disturbed:
            bundles.setdefault(row.prepared.choice.path, []).append(row)
    series = []
    for rows in bundles.values():
        ordered = sorted(rows, key=lambda row: row.speedup.value)
        speedups = [row.speedup for row in ordered]
        series.append(
            Series(
                ordered[0].label,
                [(ratio.value, ratio.low, ratio.high) for ratio in speedups],
                [_interval(row.figures[_QUALITY].estimate) for row in ordered],
                texts=[_label(row) for row in ordered],
            )
        )
    calls = "texts of equal length" if evaluation.config.equal_lengths else "whole calls"
    xlabel = f"measured speed-up over full depth of the same bundle, {calls}"
    plot(path, Chart(series, xlabel, evaluation.metrics[_QUALITY].heading))


def plot_positions(evaluation: Evaluation, path: Path) -> None:
    """Plot perplexity and loss by position, two charts per bundle; intervals are shaded.

    Needs matplotlib and an evaluation by position.
    """
    charts = []
    for _, group in groupby(evaluation.rows, key=lambda row: row.prepared.choice):
        rows = list(group)
        xlabel = "position of the completion's token"
        perplexities = _by_position(rows, lambda figure: figure.perplexity)
        losses = _by_position(rows, lambda figure: figure.loss_over_full)
        charts += [
            Chart(perplexities, xlabel, "perplexity", rows[0].label, is_log=True),
            Chart(losses, xlabel, "loss over full depth, nats per token"),
        ]
    plot(path, *charts)


def _by_position(rows: Sequence[Row], choose: Callable[[PositionFigure], Estimate]) -> list[Series]:
    series = []
    for row in rows:
        assert row.positions is not None, "an evaluation by position"
        figures = row.positions.figures
        names = [figure.name for figure in figures]
        values = [_interval(choose(figure)) for figure in figures]
        series.append(Series(row.run.name, names, values))
    return series


def _interval(estimate: Estimate) -> Interval:
    return estimate.value, estimate.low, estimate.high


def _label(row: Row) -> str:
    depth = row.figures["realised_depth"].estimate.value
    return f"{row.run.name.partition(':')[0]}, {depth:.1f} layers"
