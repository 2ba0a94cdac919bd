"""The tables of an evaluation, for a console and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from ...engines.errors import counted
from ...engines.host.console import Part, Table, interval, markdown_report, number
from ...runtime.schedule.text import format_schedule
from .bootstrap import Estimate
from .config import EvaluationConfig
from .evaluation import Evaluation, Row, Spread
from .metrics import Metric
from .positions import PositionFigure, PositionProfile


def tables(evaluation: Evaluation) -> Iterator[Part]:
    """Yield the settings, a row per bundle and schedule, differences to full depth, averages."""
    yield _setting(evaluation)
    yield _main_table(evaluation)
    ratios = [(row.label, row.run.name, row.speedup) for row in evaluation.rows]
    ratios += [(row.prepared.choice.label, row.run.name, row.run.gain) for row in evaluation.drafts]
    for label, name, ratio in ratios:
        if ratio.disturbed:
            yield (
                f"Other work disturbed {label}, {name}: {ratio.disturbed}; evaluate again when the "
                "machine is idle."
            )
    if evaluation.drafts:
        yield from _drafts(evaluation)
    if names := _schedule_names(evaluation.rows):
        yield names
    if any(row.run.name != "full" for row in evaluation.rows):
        yield "Difference to full depth of the same bundle, paired by prompt:"
        yield _difference_table(evaluation)
    if evaluation.averages:
        yield "Means over bundles with the same name, minimum and maximum in brackets:"
        yield _average_table(evaluation)
    if evaluation.config.by_position:
        groups = groupby(evaluation.rows, key=lambda row: row.prepared.choice)
        for _, rows in groups:
            yield from _positions(list(rows))


def report_markdown(evaluation: Evaluation) -> str:
    """Return the tables, then examples side by side."""
    parts: list[Part] = ["# Evaluation", *tables(evaluation)]
    if evaluation.examples:
        parts.append("## Examples")
    for example in evaluation.examples:
        references = "\n".join(f"- {' '.join(text.split())}" for text in example.prompt.references)
        texts = [(text.bundle, text.schedule, text.text) for text in example.texts]
        parts += [
            f"### {example.prompt.source}",
            " ".join(example.prompt.text.split()),
            "References:",
            references,
            Table(("bundle", "schedule", "text"), texts),
        ]
    return markdown_report(parts)


def _setting(evaluation: Evaluation) -> str:
    config = evaluation.config
    found = counted(len(evaluation.prompts), "prompt")
    prompts = f"{found} of {config.data.path.name}{_too_long(evaluation)}"
    intervals = f"In brackets: {100 * config.confidence:g} % bootstrap intervals over the prompts."
    if config.score_only:
        return f"{prompts}, references scored, no texts generated. {intervals}"
    sampling = "greedy" if config.temperature == 0 else f"temperature {config.temperature:g}"
    case = ", BLEU lower-cased" if config.metrics.lowercase else ""
    lengths = (
        "with the same number of tokens per prompt"
        if config.equal_lengths
        else "in this run; per token: divided by the number of generated tokens"
    )
    return (
        f"{prompts}, {sampling}, batches of {config.batch_size}{case}. {intervals} "
        f"Speed-up, with its 95 % interval: wall-clock of whole calls, prompts included, against "
        f"full depth {lengths}."
    )


def _speed_headings(config: EvaluationConfig) -> tuple[str, ...]:
    """Return headings of speed-ups: of whole calls and, if it can differ, per token."""
    if config.score_only:
        return ()
    return (
        ("speed-up, equal lengths",) if config.equal_lengths else ("speed-up", "speed-up per token")
    )


def _too_long(evaluation: Evaluation) -> str:
    """Describe prompts without room for a reference; "" if there are none."""
    bundles = {row.label: row.prepared.num_cut for row in evaluation.rows}
    parts = [f"{count} cut for {label}" for label, count in bundles.items() if count]
    if evaluation.num_dropped:
        parts.append(f"{evaluation.num_dropped} more left out")
    return f" (too long: {', '.join(parts)})" if parts else ""


def _main_table(evaluation: Evaluation) -> Table:
    speed_headings, metrics = _speed_headings(evaluation.config), evaluation.metrics
    headings = ["bundle", "schedule", "nominal depth", *speed_headings]
    rows = [
        [
            row.label,
            row.run.name,
            f"{row.run.schedule.average_budget():.2f}",
            *map(str, (row.speedup, row.run.token_speedup)[: len(speed_headings)]),
            *(_estimate(metric, row.figures[name].estimate) for name, metric in metrics.items()),
        ]
        for row in evaluation.rows
    ]
    return Table([*headings, *(metric.heading for metric in metrics.values())], rows)


def _drafts(evaluation: Evaluation) -> Iterator[Part]:
    """Yield the table of drafts, and a warning if one changed a text."""
    yield (
        "Drafts at full depth, whose texts are compared with those without drafts. Gain: "
        "wall-clock of whole calls without drafts ÷ with them, in turn:"
    )
    runs = [(row.prepared.choice.label, row.run) for row in evaluation.drafts]
    yield Table(
        ("bundle", "draft", "equal texts", "tokens per pass", "accepted", "gain"),
        [
            (
                label,
                run.name if run.name == str(run.draft) else f"{run.name}: {run.draft}",
                f"{run.num_equal} of {run.num_texts}",
                f"{run.counts.tokens_per_pass:.2f}",
                "–" if (share := run.counts.acceptance) is None else f"{share:.2f}",
                str(run.gain),
            )
            for label, run in runs
        ],
    )
    if changed := evaluation.changed_by_drafts:
        names = ", ".join(f"{row.prepared.choice.label}, {row.run.name}" for row in changed)
        yield f"Drafts changed texts: {names}."


def _schedule_names(rows: Sequence[Row]) -> str:
    """Explain short schedule names, which may differ between bundles; "" if there are none."""
    lines = {
        f"- `{row.run.name}`, {row.run.schedule.num_layers} layers: `{text}`"
        for row in rows
        if (text := format_schedule(row.run.schedule)) != row.run.name
    }
    return "\n".join(sorted(lines))


def _difference_table(evaluation: Evaluation) -> Table:
    measures = {name: metric for name, metric in evaluation.metrics.items() if metric.better}
    rows = [
        [
            row.label,
            row.run.name,
            *(
                _estimate(metric, row.figures[name].difference, signed=True)
                for name, metric in measures.items()
            ),
        ]
        for row in evaluation.rows
        if row.run.name != "full"
    ]
    return Table(["bundle", "schedule", *(metric.heading for metric in measures.values())], rows)


def _average_table(evaluation: Evaluation) -> Table:
    speed_headings, metrics = _speed_headings(evaluation.config)[:1], evaluation.metrics
    rows = [
        [
            entry.label,
            entry.schedule,
            str(entry.num_bundles),
            *(_interval(entry.speedup, 2) for _ in speed_headings),
            *(_interval(entry.figures[name], metric.digits) for name, metric in metrics.items()),
        ]
        for entry in evaluation.averages
    ]
    headings = ["name", "schedule", "bundles", *speed_headings]
    return Table([*headings, *(metric.heading for metric in metrics.values())], rows)


def _estimate(metric: Metric, estimate: Estimate, *, signed: bool = False) -> str:
    """Format ``69.1 [66.8, 71.2]``; mere descriptions get no interval."""
    if metric.better is None:
        return number(estimate.value, metric.digits, signed=signed)
    return _interval(estimate, metric.digits, signed=signed)


def _positions(rows: Sequence[Row]) -> Iterator[Part]:
    """Yield perplexity and loss relative to full depth by position, for one bundle."""
    profiles = [(row, row.positions) for row in rows if row.positions is not None]
    figures = profiles[0][1].figures
    names = [figure.name for figure in figures]
    counts = ["tokens", *(f"{figure.num_tokens:,}" for figure in figures)]
    yield f"Perplexity of {rows[0].label} by position of the completion's token:"
    cells = _cells(profiles, lambda figure: figure.perplexity, digits=2)
    yield Table(["schedule", *names], [counts, *cells])
    skipping = [(row, profile) for row, profile in profiles if not row.run.schedule.is_full]
    if skipping:
        yield (
            "Loss minus full depth's by position, nats per token, paired by prompt. Last column: "
            "last positions minus the first after 0, negative if skipping costs less later:"
        )
        cells = _cells(skipping, lambda figure: figure.loss_over_full, digits=3, signed=True)
        changes = (profile.late_minus_early for _, profile in skipping)
        excess = [
            [*row, "–" if change is None else _interval(change, 3, signed=True)]
            for row, change in zip(cells, changes, strict=True)
        ]
        yield Table(["schedule", *names, "late − early"], excess)


def _cells(
    profiles: Sequence[tuple[Row, PositionProfile]],
    choose: Callable[[PositionFigure], Estimate],
    *,
    digits: int,
    signed: bool = False,
) -> list[list[str]]:
    return [
        [
            row.run.name,
            *(_interval(choose(figure), digits, signed=signed) for figure in profile.figures),
        ]
        for row, profile in profiles
    ]


def _interval(figure: Estimate | Spread, digits: int, *, signed: bool = False) -> str:
    """Format ``69.1 [66.8, 71.2]``, without bounds if they are undefined; nan is a dash."""
    value = figure.mean if isinstance(figure, Spread) else figure.value
    if not math.isfinite(figure.low):
        return number(value, digits, signed=signed)
    return interval(value, figure.low, figure.high, digits, signed=signed)
