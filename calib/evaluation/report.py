"""The JSON document and plots of an evaluation, and the directory that holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.bundle.place import Place
from ...engines.documents import write_file
from ...engines.host.console import json_text
from ...engines.host.installation import own_version
from ...engines.host.processor import processor_name
from ...runtime.schedule.pictures import WIDTH, picture_style, save_picture
from ...runtime.schedule.text import format_schedule
from ..pictures import frame, label_points
from .bootstrap import Estimate
from .drafts import DraftRow
from .evaluation import Evaluation, Row
from .markdown import report_markdown
from .positions import PositionFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENT, REPORT, PICTURE = "evaluation.json", "evaluation.md", "pareto.png"
POSITIONS_PICTURE = "positions.png"
_FILES = {DOCUMENT, REPORT, PICTURE, POSITIONS_PICTURE}


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


class EvaluationPlace(Place):
    """Directory of an evaluation; ``force`` replaces another evaluation but never other files."""

    def problems(self, *, force: bool) -> list[str]:
        """Return reasons why nothing may be written here; the parent folder must exist."""
        directory = self.target
        if not directory.parent.is_dir():
            return [f"{directory.parent} is not a directory; make it"]
        if not directory.exists():
            return super().problems(force=force)
        if not directory.is_dir():
            return ["is a file; name a directory"]
        foreign = sorted({entry.name for entry in directory.iterdir()} - _FILES)
        if foreign:
            listed = ", ".join(foreign[:5])
            return [f"holds {listed}, not a result of skipdec evaluate; name another"]
        if not force:
            return ["exists; --force replaces it, or name another"]
        return super().problems(force=force)


def evaluation_place(output: Path) -> EvaluationPlace:
    """Return the place of the evaluation in ``output``."""
    return EvaluationPlace(output.resolve(), DOCUMENT, "an evaluation")


def pictures(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the pictures to draw: quality over speed if texts were generated; positions."""
    names = [] if evaluation.config.score_only else [PICTURE]
    return (*names, *([POSITIONS_PICTURE] if evaluation.config.by_position else []))


def write_evaluation(
    directory: Path, evaluation: Evaluation, document: dict[str, Any], *, force: bool
) -> tuple[str, ...]:
    """Write evaluation.json, evaluation.md and, with matplotlib, the ``pictures``.

    Returns the names of the files. An existing ``directory`` is replaced atomically, and only by a
    complete result. Raises as ``Place.replaced`` does.
    """
    with evaluation_place(directory).replaced(force=force) as partial:
        write_file(partial / DOCUMENT, json_text(document))
        write_file(partial / REPORT, report_markdown(evaluation))
        if find_spec("matplotlib") is not None:
            if PICTURE in pictures(evaluation):
                plot_pareto(evaluation, partial / PICTURE)
            if POSITIONS_PICTURE in pictures(evaluation):
                plot_positions(evaluation, partial / POSITIONS_PICTURE)
        return tuple(sorted(path.name for path in partial.iterdir()))


@picture_style()
def plot_pareto(evaluation: Evaluation, path: Path, *, metric: str = "bleu") -> None:
    """Plot ``metric`` over the speed-up of whole calls, one line per bundle, intervals as bars.

    Higher must be better for ``metric``. Disturbed speed-ups are left out. Pareto-optimal points
    are ringed. Needs matplotlib (extra ``plot``).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
    axes = figure.subplots()
    bundles: dict[Path, list[Row]] = {}
    timed = [row for row in evaluation.rows if not row.speedup.disturbed]
    for row in timed:
        bundles.setdefault(row.prepared.choice.path, []).append(row)
    for rows in bundles.values():
        ordered = sorted(rows, key=lambda row: row.speedup.value)
        estimates = [row.figures[metric].estimate for row in ordered]
        axes.errorbar(
            [row.speedup.value for row in ordered],
            [estimate.value for estimate in estimates],
            xerr=[
                [row.speedup.value - row.speedup.low for row in ordered],
                [row.speedup.high - row.speedup.value for row in ordered],
            ],
            yerr=[
                [max(0.0, estimate.value - estimate.low) for estimate in estimates],
                [max(0.0, estimate.high - estimate.value) for estimate in estimates],
            ],
            marker="o",
            capsize=3,
            label=ordered[0].label,
        )
    points = [(row.speedup.value, row.figures[metric].estimate.value) for row in timed]
    front = [points[place] for place in pareto_front(points)]
    axes.scatter(
        [speedup for speedup, _ in front],
        [quality for _, quality in front],
        s=120,
        facecolors="none",
        edgecolors="black",
        label="Pareto-optimal",
        zorder=3,
    )
    calls = "texts of equal length" if evaluation.config.equal_lengths else "whole calls"
    axes.set_xlabel(f"measured speed-up over full depth of the same bundle, {calls}")
    axes.set_ylabel(evaluation.metrics[metric].heading)
    axes.legend()
    frame(axes, points)
    # Full depth comes last: if its points, which all lie at 1, crowd, others keep their places.
    named = sorted(range(len(points)), key=lambda place: timed[place].run.schedule.is_full)
    label_points(
        axes,
        [_label(timed[place]) for place in named],
        [points[place] for place in named],
    )
    save_picture(figure, path)


def _label(row: Row) -> str:
    depth = row.figures["realised_depth"].estimate.value
    return f"{row.run.name.partition(':')[0]}, {depth:.1f} layers"


def pareto_front(points: list[tuple[float, float]]) -> list[int]:
    """Return indices of points that no other beats: better in one coordinate, no worse in the
    other.
    """
    return [
        place
        for place, (speed, quality) in enumerate(points)
        if not any(
            other_speed >= speed
            and other_quality >= quality
            and (other_speed, other_quality) != (speed, quality)
            for other_speed, other_quality in points
        )
    ]


@picture_style()
def plot_positions(evaluation: Evaluation, path: Path) -> None:
    """Plot perplexity and loss by position, two charts per bundle; intervals are shaded.

    Needs matplotlib (extra ``plot``) and an evaluation by position.
    """
    from matplotlib.figure import Figure

    groups = [
        list(rows) for _, rows in groupby(evaluation.rows, key=lambda row: row.prepared.choice)
    ]
    figure = Figure(figsize=(WIDTH, 6.4 * len(groups)), layout="constrained")
    pairs = figure.subplots(2 * len(groups), 1).reshape(len(groups), 2)
    for (upper, lower), rows in zip(pairs, groups, strict=True):
        _draw(upper, rows, lambda figure: figure.perplexity)
        upper.set(yscale="log", ylabel="perplexity", title=rows[0].label)
        upper.legend()
        losses = _draw(lower, rows, lambda figure: figure.loss_over_full)
        lower.set(ylabel="loss over full depth, nats per token")
        frame(lower, losses)
    save_picture(figure, path)


def _draw(
    axes: Axes, rows: Sequence[Row], choose: Callable[[PositionFigure], Estimate]
) -> list[tuple[float, float]]:
    """Plot one figure of all schedules over the position; return the points."""
    points: list[tuple[float, float]] = []
    for row in rows:
        assert row.positions is not None, "an evaluation by position"
        figures = row.positions.figures
        places = [figure.name for figure in figures]
        estimates = [choose(figure) for figure in figures]
        values = [entry.value for entry in estimates]
        axes.plot(places, values, marker="o", label=row.run.name)
        points += enumerate(values)
        axes.fill_between(
            places,
            [entry.low for entry in estimates],
            [entry.high for entry in estimates],
            alpha=0.2,
        )
    axes.set_xlabel("position of the completion's token")
    return points
