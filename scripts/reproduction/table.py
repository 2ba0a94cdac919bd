"""Tables of all seeds' cells: means, single seeds, differences to the fair control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import mean

import numpy as np

from reproduction.columns import COLUMNS
from reproduction.config import CONTROL, MIXTURE, UNTUNED, ReproductionConfig
from reproduction.evaluation import RESAMPLED, CellResult
from reproduction.runs import Cell
from skipdec.calib.evaluation.bootstrap import Estimate, MetricSample
from skipdec.calib.evaluation.config import MetricOptions
from skipdec.calib.evaluation.metrics import chosen_metrics
from skipdec.engines.bundle import replace_file
from skipdec.engines.host.console import interval, json_text, markdown_table, number
from skipdec.engines.host.installation import own_version
from skipdec.engines.host.processor import available_cores, processor_name

_CONFIDENCE = 0.95
_EMPTY = "–"

Print = Callable[[Cell], str]
DOCUMENT, REPORT = "results.json", "tables.md"


@dataclass(frozen=True)
class Table:
    """All results of one reproduction, by place."""

    config: ReproductionConfig
    results: Sequence[CellResult]

    def of(self, cell: Cell) -> list[CellResult]:
        """Return a result per seed, in the configuration's order; none without a schedule."""
        found = (result for result in self.results if result.cell == cell)
        return sorted(found, key=lambda result: self.config.seeds.index(result.seed))

    def difference(self, cell: Cell, metric: str) -> Estimate:
        """Return the mean over seeds minus that of full depth tuned equally long.

        Both are paired by seed (they have one base) and by prompt (they use one resample).
        """
        difference = self._mean(cell, metric) - self._mean(Cell(CONTROL, 1), metric)
        return difference.estimate(_CONFIDENCE)

    def _mean(self, cell: Cell, metric: str) -> MetricSample:
        results = self.of(cell)
        resampled = np.mean([result.resampled[metric] for result in results], axis=0)  # [resamples]
        return MetricSample(mean(result.figures[metric] for result in results), resampled)


def tables_markdown(table: Table) -> str:
    """Return BLEU and ROUGE-L with differences, actual depth, lengths, perplexity, speed."""
    parts = [_setting(table)]
    for metric in RESAMPLED:
        heading = chosen_metrics(MetricOptions())[metric].heading
        parts += [
            f"**{heading}**",
            _grid(table, partial(_figure, table, metric, 1)),
            f"**{heading}, minus full depth tuned for as long**",
            _grid(table, partial(_difference, table, metric)),
        ]
    parts += [
        "**Realised depth**",
        _grid(table, partial(_figure, table, "realised_depth", 2)),
        "**Length of the texts ÷ that of the references**",
        _grid(table, partial(_figure, table, "length_ratio", 2)),
        "**Perplexity of the references, each token at its depth**",
        _grid(table, partial(_figure, table, "perplexity", 2)),
        "**Measured speed-up over full depth with as many tokens, prompts included**",
        _grid(table, partial(_speedup, table)),
    ]
    return "\n\n".join(parts) + "\n"


def _setting(table: Table) -> str:
    config, prompts = table.config, table.results[0].num_prompts
    seeds = ", ".join(map(str, config.seeds))
    start = config.model.name if config.model else f"{config.sizes}, vocabulary {config.vocab_size}"
    return (
        f"{start}; seeds {seeds}. "
        f"Base: {config.base_epochs:g} epochs at full depth; then {config.tuning_steps} steps of "
        f"{config.batch_size}. {prompts} prompts of "
        f"{config.dev.name}, greedy, batches of {config.evaluation_batch_size}, lower-cased BLEU, "
        "all references. Means over the seeds, each seed in round brackets; in square ones 95 % "
        "bootstrap intervals over the prompts."
    )


def _grid(table: Table, text: Print) -> str:
    """Return one row per speed-up, one column per way to skip; controls at 1×."""
    tuned = table.config.columns
    columns = [UNTUNED, *tuned, *([MIXTURE] if table.config.mixture else [])]
    headings = [f"{COLUMNS[name].heading}, tuned" if name in tuned else name for name in columns]
    rows = [
        [f"{speedup}×", *(text(Cell(name, speedup)) for name in columns)]
        for speedup in (1, *table.config.rows)
    ]
    return markdown_table(["by layers", *headings], rows)


def _figure(table: Table, metric: str, digits: int, cell: Cell) -> str:
    return _by_seed([result.figures[metric] for result in table.of(cell)], digits)


def _speedup(table: Table, cell: Cell) -> str:
    return _by_seed([result.measured_speedup for result in table.of(cell)], 2)


def _by_seed(values: Sequence[float], digits: int) -> str:
    """Format ``69.1 (68.7, 69.5)``: the mean, then each seed."""
    if not values:
        return _EMPTY
    seeds = ", ".join(number(value, digits) for value in values)
    average = number(mean(values), digits)
    return f"{average} ({seeds})" if len(values) > 1 else average


def _difference(table: Table, metric: str, cell: Cell) -> str:
    if not table.of(cell):
        return _EMPTY
    estimate = table.difference(cell, metric)
    return interval(estimate.value, estimate.low, estimate.high, 1, signed=True)


def write_results(config: ReproductionConfig, results: Sequence[CellResult]) -> str:
    """Write results.json and tables.md into ``config.work``; return the tables."""
    document = {
        "skipdec": own_version(),
        "torch": version("torch"),
        "processor": processor_name(),
        "cores": available_cores(),
        "config": config.model_dump(mode="json"),
        "cells": [result.model_dump(mode="json", exclude={"resampled"}) for result in results],
    }
    tables = tables_markdown(Table(config, results))
    replace_file(config.work / DOCUMENT, json_text(document).encode())
    replace_file(config.work / REPORT, tables.encode())
    return tables
