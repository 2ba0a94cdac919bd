"""What an evaluation found, as Markdown tables for people."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from ..runtime.schedule_text import format_schedule
from .bootstrap import Estimate
from .evaluation import Average, Evaluation, Example, Row, Spread
from .metrics import Metric

_SPEED_HEADINGS = ("speed-up", "speed-up per token")


def tables_markdown(evaluation: Evaluation) -> str:
    """Return the setting, one row a bundle and schedule, differences to full depth, averages."""
    parts = [_setting(evaluation), _main_table(evaluation)]
    if names := _schedule_names(evaluation.rows):
        parts.append(names)
    if any(row.run.name != "full" for row in evaluation.rows):
        parts.append(_difference_table(evaluation))
    if evaluation.averages:
        parts.append(_average_table(evaluation))
    return "\n\n".join(parts) + "\n"


def report_markdown(evaluation: Evaluation) -> str:
    """Return the tables, then some examples side by side."""
    examples = [_example(example) for example in evaluation.examples]
    heading = ["## Examples"] if examples else []
    return (
        "\n\n".join(["# Evaluation", tables_markdown(evaluation).rstrip(), *heading, *examples])
        + "\n"
    )


def _setting(evaluation: Evaluation) -> str:
    config = evaluation.config
    sampling = "greedy" if config.temperature == 0 else f"temperature {config.temperature:g}"
    case = ", BLEU lower-cased" if config.metrics.lowercase else ""
    return (
        f"{len(evaluation.prompts)} prompts of {config.data.path.name}, {sampling}, batches of "
        f"{config.batch_size}{case}. In brackets: {100 * config.confidence:g} % bootstrap "
        "intervals over the prompts. Speed-up: wall-clock of whole calls, prompts included, "
        "against full depth in this run; per token: the same over the tokens that were generated."
    )


def _main_table(evaluation: Evaluation) -> str:
    headings = ["bundle", "schedule", "nominal depth", *_SPEED_HEADINGS]
    headings += [metric.heading for metric in evaluation.metrics.values()]
    return _table(headings, (_main_cells(evaluation, row) for row in evaluation.rows))


def _main_cells(evaluation: Evaluation, row: Row) -> list[str]:
    return [
        _escaped(row.label),
        _escaped(row.run.name),
        f"{row.run.schedule.average_budget():.2f}",
        f"{row.speedup:.2f}×",
        f"{row.token_speedup:.2f}×",
        *(
            _estimate(metric, row.figures[name].estimate)
            for name, metric in evaluation.metrics.items()
        ),
    ]


def _schedule_names(rows: Sequence[Row]) -> str:
    """What short names stand for; the same one may differ between bundles. "" if all are long."""
    lines = {
        f"- `{row.run.name}`, {row.run.schedule.num_layers} layers: `{text}`"
        for row in rows
        if (text := format_schedule(row.run.schedule)) != row.run.name
    }
    return "\n".join(sorted(lines))


def _difference_table(evaluation: Evaluation) -> str:
    measures = _measures_of_quality(evaluation)
    table = _table(
        ["bundle", "schedule", *(metric.heading for metric in measures.values())],
        (
            [
                _escaped(row.label),
                _escaped(row.run.name),
                *(
                    _estimate(metric, row.figures[name].difference, signed=True)
                    for name, metric in measures.items()
                ),
            ]
            for row in evaluation.rows
            if row.run.name != "full"
        ),
    )
    return f"Difference to full depth of the same bundle, paired by prompt:\n\n{table}"


def _average_table(evaluation: Evaluation) -> str:
    headings = ["name", "schedule", "bundles", _SPEED_HEADINGS[0]]
    headings += [metric.heading for metric in evaluation.metrics.values()]
    table = _table(headings, (_average_cells(evaluation, entry) for entry in evaluation.averages))
    return f"Means over bundles of one name, lowest and highest in brackets:\n\n{table}"


def _average_cells(evaluation: Evaluation, average: Average) -> list[str]:
    return [
        _escaped(average.label),
        _escaped(average.schedule),
        str(average.num_bundles),
        _spread(average.speedup, 2),
        *(
            _spread(average.figures[name], metric.digits)
            for name, metric in evaluation.metrics.items()
        ),
    ]


def _example(example: Example) -> str:
    texts = _table(
        ["bundle", "schedule", "text"],
        (map(_escaped, (text.bundle, text.schedule, text.text)) for text in example.texts),
    )
    references = "\n".join(f"- {_escaped(text)}" for text in example.prompt.references)
    return (
        f"### {_escaped(example.prompt.source)}\n\n{_escaped(example.prompt.text)}\n\n"
        f"References:\n\n{references}\n\n{texts}"
    )


def _measures_of_quality(evaluation: Evaluation) -> dict[str, Metric]:
    return {name: metric for name, metric in evaluation.metrics.items() if metric.better}


def _estimate(metric: Metric, estimate: Estimate, *, signed: bool = False) -> str:
    """``69.1 [66.8, 71.2]``; a description has no interval, an undefined figure is a dash."""
    value = _number(estimate.value, metric.digits, signed=signed)
    if metric.better is None or not math.isfinite(estimate.low):
        return value
    low = _number(estimate.low, metric.digits, signed=signed)
    high = _number(estimate.high, metric.digits, signed=signed)
    return f"{value} [{low}, {high}]"


def _spread(spread: Spread, digits: int) -> str:
    low, high = _number(spread.low, digits), _number(spread.high, digits)
    return f"{_number(spread.mean, digits)} [{low}, {high}]"


def _number(value: float, digits: int, *, signed: bool = False) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}.{digits}f}"


def _table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    """One line that Markdown shows as it is: a ``<sep>`` stays visible, a | ends no cell."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
