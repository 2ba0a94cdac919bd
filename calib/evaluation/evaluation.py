"""Evaluate quality, depth and measured speed of bundles at their exit schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import mean

from ...engines.host.events import Events
from ...runtime.generator import Generator, OpenGenerator
from ...runtime.measuring.meter import Ratio
from .bootstrap import Bootstrap, Estimate
from .config import EvaluationConfig
from .drafts import DraftRow, DraftRun
from .inputs import PreparedBundle, ReferencedPrompt, prepare
from .metrics import Metric, chosen_metrics
from .positions import PositionProfile, position_profiles
from .running import ScheduleRun, run_bundle


@dataclass(frozen=True)
class Figure:
    """A metric of one row; ``difference`` is relative to full depth, paired by example."""

    estimate: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Row:
    """One bundle at one schedule."""

    prepared: PreparedBundle
    run: ScheduleRun
    device: str  # "cpu", or the name that the GPU reports
    figures: Mapping[str, Figure]  # by metric name
    positions: PositionProfile | None = None

    @property
    def label(self) -> str:
        """Label of the bundle."""
        return self.prepared.choice.label

    @property
    def speedup(self) -> Ratio:
        """Full depth's seconds ÷ this schedule's: whole calls of all texts, prompts included."""
        return self.run.speedup


@dataclass(frozen=True)
class Spread:
    """Mean, minimum and maximum of a figure over several checkpoints."""

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Return the spread of ``values``."""
        return cls(mean(values), min(values), max(values))


@dataclass(frozen=True)
class Average:
    """Several bundles with the same label at one schedule."""

    label: str
    schedule: str
    num_bundles: int
    speedup: Spread
    figures: Mapping[str, Spread]


@dataclass(frozen=True)
class Text:
    """The text that one row generated for one prompt."""

    bundle: str
    schedule: str
    text: str


@dataclass(frozen=True)
class Example:
    """One prompt with the texts of all rows."""

    prompt: ReferencedPrompt
    texts: tuple[Text, ...]


@dataclass(frozen=True)
class Evaluation:
    """All rows, grouped by bundle, full depth first in each group."""

    config: EvaluationConfig
    prompts: tuple[ReferencedPrompt, ...]
    metrics: Mapping[str, Metric]
    rows: tuple[Row, ...]
    num_dropped: int = 0  # prompts left out as too long
    drafts: tuple[DraftRow, ...] = ()

    @property
    def changed_by_drafts(self) -> tuple[DraftRow, ...]:
        """The rows whose drafts changed a text, which only inexact drafts may do."""
        return tuple(row for row in self.drafts if row.run.num_equal < row.run.num_texts)

    @property
    def examples(self) -> tuple[Example, ...]:
        """``config.num_shown`` prompts, evenly spread over the data; none if there are no texts."""
        if self.config.score_only:
            return ()
        count = min(self.config.num_shown, len(self.prompts))
        indices = [number * len(self.prompts) // count for number in range(count)]
        return tuple(
            Example(
                self.prompts[index],
                tuple(
                    Text(row.label, row.run.name, row.run.outcomes[index].text) for row in self.rows
                ),
            )
            for index in indices
        )

    @property
    def averages(self) -> tuple[Average, ...]:
        """Averages of bundles that share a label; empty if all labels differ."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.label, row.run.name), []).append(row)
        return tuple(
            Average(
                label=label,
                schedule=schedule,
                num_bundles=len(rows),
                speedup=Spread.over([row.speedup.value for row in rows]),
                figures={
                    name: Spread.over([row.figures[name].estimate.value for row in rows])
                    for name in rows[0].figures
                },
            )
            for (label, schedule), rows in groups.items()
            if len(rows) > 1
        )


def evaluate(
    config: EvaluationConfig,
    open_generator: OpenGenerator | None = None,
    events: Events | None = None,
) -> Evaluation:
    """Evaluate the bundles one after another, each at every schedule.

    ``open_generator`` opens the bundle at a path for batches of ``config.batch_size``; the default
    is ``Generator.open``. ``events`` receives the progress.

    Before any work, raises MissingExtraError for a metric's library and the errors of ``prepare``.
    """
    EvaluationConfig.require(config)
    metrics = chosen_metrics(config.metrics, score_only=config.score_only)
    inputs = prepare(config)
    events = events or Events()
    events.planned("", inputs.notes)
    open_generator = open_generator or partial(Generator.open, max_batch_size=config.batch_size)
    chunks = ceil(len(inputs.prompts) / config.batch_size)
    schedules = sum(len(each.schedules) + len(config.drafts) for each in inputs.bundles)
    events.stage("evaluating", chunks * schedules)
    rows: list[Row] = []
    draft_rows: list[DraftRow] = []
    for prepared in inputs.bundles:
        with open_generator(prepared.choice.path) as generator:
            prepared.bundle.check_same(generator.bundle)
            drafts = [
                DraftRun(name, draft, generator.fresh_draft_memory())
                for name, draft in prepared.drafts.items()
            ]
            runs = run_bundle(generator, prepared, config, events.advance, drafts)
            device = "cpu" if generator.device is None else generator.device.name
        rows += _rows(config, metrics, prepared, runs, device)
        draft_rows += [DraftRow(prepared, run) for run in drafts]
    return Evaluation(
        config, inputs.prompts, metrics, tuple(rows), inputs.num_dropped, tuple(draft_rows)
    )


def _rows(
    config: EvaluationConfig,
    metrics: Mapping[str, Metric],
    prepared: PreparedBundle,
    runs: Sequence[ScheduleRun],
    device: str,
) -> list[Row]:
    """Return one row per run; ``runs`` begin with full depth."""
    bootstrap = Bootstrap(len(prepared.prompts), resamples=config.resamples, seed=config.seed)
    samples = [
        {name: bootstrap.sample(metric, run.outcomes) for name, metric in metrics.items()}
        for run in runs
    ]
    profiles: list[PositionProfile] | list[None] = [None] * len(runs)
    if config.by_position:
        outcomes = [run.outcomes for run in runs]
        profiles = position_profiles(outcomes, bootstrap, config.confidence)
    return [
        Row(
            prepared=prepared,
            run=run,
            device=device,
            figures={
                name: Figure(
                    sample[name].estimate(config.confidence),
                    (sample[name] - samples[0][name]).estimate(config.confidence),
                )
                for name in metrics
            },
            positions=profile,
        )
        for run, sample, profile in zip(runs, samples, profiles, strict=True)
    ]
