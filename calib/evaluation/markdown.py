"""Markdown tables of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from ...engines.host.console import escaped, interval, markdown_table, number
from ...runtime.schedule.text import format_schedule
from .bootstrap import Estimate
from .config import EvaluationConfig
from .evaluation import Evaluation, Example, Row, Spread
from .metrics import Metric
from .positions import PositionFigure, PositionProfile


def tables_markdown(evaluation: Evaluation) -> str:
    """Return the settings, a row per bundle and schedule, differences to full depth, averages."""
    parts = [_setting(evaluation), _main_table(evaluation)]
    ratios = [(row.label, row.run.name, row.speedup) for row in evaluation.rows]
    ratios += [(row.prepared.choice.label, row.run.name, row.run.gain) for row in evaluation.drafts]
    parts += [
        f"Other work disturbed {escaped(label)}, {escaped(name)}: {ratio.disturbed}; evaluate "
        "again when the machine is idle."
        for label, name, ratio in ratios
        if ratio.disturbed
    ]
    if evaluation.drafts:
        parts.append(_draft_table(evaluation))
    if names := _schedule_names(evaluation.rows):
        parts.append(names)
    if any(row.run.name != "full" for row in evaluation.rows):
        parts.append(_difference_table(evaluation))
    if evaluation.averages:
        parts.append(_average_table(evaluation))
    if evaluation.config.by_position:
        groups = groupby(evaluation.rows, key=lambda row: row.prepared.choice)
        parts += [_position_tables(list(rows)) for _, rows in groups]
    return "\n\n".join(parts) + "\n"


def report_markdown(evaluation: Evaluation) -> str:
    """Return the tables, then examples side by side."""
    examples = [_example(example) for example in evaluation.examples]
    heading = ["## Examples"] if examples else []
    return (
        "\n\n".join(["# Evaluation", tables_markdown(evaluation).rstrip(), *heading, *examples])
        + "\n"
    )


def _setting(evaluation: Evaluation) -> str:
    config = evaluation.config
    prompts = f"{len(evaluation.prompts)} prompts of {config.data.path.name}{_too_long(evaluation)}"
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
    """Return headings of speed-ups: of whole calls and per token, where those can differ."""
    if config.score_only:
        return ()
    return (
        ("speed-up, equal lengths",) if config.equal_lengths else ("speed-up", "speed-up per token")
    )


def _too_long(evaluation: Evaluation) -> str:
    """Describe prompts without room for a reference; "" if there are none."""
    bundles = {row.label: row.prepared.num_cut for row in evaluation.rows}
    parts = [f"{count} cut for {escaped(label)}" for label, count in bundles.items() if count]
    if evaluation.num_dropped:
        parts.append(f"{evaluation.num_dropped} more left out")
    return f" (too long: {', '.join(parts)})" if parts else ""


def _main_table(evaluation: Evaluation) -> str:
    speed_headings = _speed_headings(evaluation.config)
    metrics = evaluation.metrics
    headings = ["bundle", "schedule", "nominal depth", *speed_headings]
    rows = (
        [
            escaped(row.label),
            escaped(row.run.name),
            f"{row.run.schedule.average_budget():.2f}",
            *map(str, (row.speedup, row.run.token_speedup)[: len(speed_headings)]),
            *(_estimate(metric, row.figures[name].estimate) for name, metric in metrics.items()),
        ]
        for row in evaluation.rows
    )
    return markdown_table([*headings, *(metric.heading for metric in metrics.values())], rows)


def _draft_table(evaluation: Evaluation) -> str:
    """Return the table of drafts, and a warning if one changed a text."""
    runs = [(row.prepared.choice.label, row.run) for row in evaluation.drafts]
    table = markdown_table(
        ["bundle", "draft", "equal texts", "tokens per pass", "accepted", "gain"],
        (
            [
                escaped(label),
                escaped(run.name if run.name == str(run.draft) else f"{run.name}: {run.draft}"),
                f"{run.num_equal} of {run.num_texts}",
                f"{run.counts.tokens_per_pass:.2f}",
                "–" if (share := run.counts.acceptance) is None else f"{share:.2f}",
                str(run.gain),
            ]
            for label, run in runs
        ),
    )
    warning = ""
    if changed := evaluation.changed_by_drafts:
        names = ", ".join(f"{row.prepared.choice.label}, {row.run.name}" for row in changed)
        warning = f"\n\nDrafts changed texts: {escaped(names)}."
    return (
        "Drafts at full depth, whose texts are compared with those without drafts. Gain: "
        f"wall-clock of whole calls without drafts ÷ with them, in turn:\n\n{table}{warning}"
    )


def _schedule_names(rows: Sequence[Row]) -> str:
    """Explain short schedule names, which may differ between bundles; "" if there are none."""
    lines = {
        f"- `{row.run.name}`, {row.run.schedule.num_layers} layers: `{text}`"
        for row in rows
        if (text := format_schedule(row.run.schedule)) != row.run.name
    }
    return "\n".join(sorted(lines))


def _difference_table(evaluation: Evaluation) -> str:
    measures = {name: metric for name, metric in evaluation.metrics.items() if metric.better}
    rows = markdown_table(
        ["bundle", "schedule", *(metric.heading for metric in measures.values())],
        (
            [
                escaped(row.label),
                escaped(row.run.name),
                *(
                    _estimate(metric, row.figures[name].difference, signed=True)
                    for name, metric in measures.items()
                ),
            ]
            for row in evaluation.rows
            if row.run.name != "full"
        ),
    )
    return f"Difference to full depth of the same bundle, paired by prompt:\n\n{rows}"


def _average_table(evaluation: Evaluation) -> str:
    speed_headings = _speed_headings(evaluation.config)[:1]
    metrics = evaluation.metrics
    headings = ["name", "schedule", "bundles", *speed_headings]
    rows = (
        [
            escaped(entry.label),
            escaped(entry.schedule),
            str(entry.num_bundles),
            *(_interval(entry.speedup, 2) for _ in speed_headings),
            *(_interval(entry.figures[name], metric.digits) for name, metric in metrics.items()),
        ]
        for entry in evaluation.averages
    )
    table = markdown_table([*headings, *(metric.heading for metric in metrics.values())], rows)
    return f"Means over bundles with the same name, minimum and maximum in brackets:\n\n{table}"


def _example(example: Example) -> str:
    texts = markdown_table(
        ["bundle", "schedule", "text"],
        (map(escaped, (text.bundle, text.schedule, text.text)) for text in example.texts),
    )
    references = "\n".join(f"- {escaped(text)}" for text in example.prompt.references)
    return (
        f"### {escaped(example.prompt.source)}\n\n{escaped(example.prompt.text)}\n\n"
        f"References:\n\n{references}\n\n{texts}"
    )


def _estimate(metric: Metric, estimate: Estimate, *, signed: bool = False) -> str:
    """Format ``69.1 [66.8, 71.2]``; descriptions have no interval, undefined figures are a dash."""
    if metric.better is None or not math.isfinite(estimate.low):
        return number(estimate.value, metric.digits, signed=signed)
    return _interval(estimate, metric.digits, signed=signed)


def _position_tables(rows: Sequence[Row]) -> str:
    """Return perplexity and loss relative to full depth by position, for one bundle."""
    profiles = [(row, row.positions) for row in rows if row.positions is not None]
    figures = profiles[0][1].figures
    names = [figure.name for figure in figures]
    counts = ["tokens", *(f"{figure.num_tokens:,}" for figure in figures)]
    perplexities = markdown_table(
        ["schedule", *names],
        [counts, *_cells(profiles, lambda figure: figure.perplexity, digits=2)],
    )
    label = escaped(rows[0].label)
    parts = [f"Perplexity of {label} by position of the completion's token:\n\n{perplexities}"]
    skipping = [(row, profile) for row, profile in profiles if not row.run.schedule.is_full]
    if skipping:
        cells = _cells(skipping, lambda figure: figure.loss_over_full, digits=3, signed=True)
        changes = (profile.late_minus_early for _, profile in skipping)
        excess = markdown_table(
            ["schedule", *names, "late − early"],
            [
                [*row, "–" if change is None else _interval(change, 3, signed=True)]
                for row, change in zip(cells, changes, strict=True)
            ],
        )
        parts.append(
            "Loss minus full depth's by position, nats per token, paired by prompt. Last column: "
            "last positions minus the first after 0, negative if skipping costs less later:"
            f"\n\n{excess}"
        )
    return "\n\n".join(parts)


def _cells(
    profiles: Sequence[tuple[Row, PositionProfile]],
    choose: Callable[[PositionFigure], Estimate],
    *,
    digits: int,
    signed: bool = False,
) -> list[list[str]]:
    return [
        [
            escaped(row.run.name),
            *(_interval(choose(figure), digits, signed=signed) for figure in profile.figures),
        ]
        for row, profile in profiles
    ]


def _interval(figure: Estimate | Spread, digits: int, *, signed: bool = False) -> str:
    value = figure.mean if isinstance(figure, Spread) else figure.value
    return interval(value, figure.low, figure.high, digits, signed=signed)
