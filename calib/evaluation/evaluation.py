"""Evaluate quality, depth and measured speed of bundles at their exit schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from statistics import mean

from ...engines.host.events import Events
from ...runtime.generator import Generator, OpenGenerator
from ...runtime.measuring.bench import disturbance
from ...runtime.measuring.cost import CostModel
from ...runtime.schedule import ExitSchedule
from .bootstrap import Bootstrap, Estimate
from .config import EvaluationConfig, MetricOptions
from .inputs import PreparedBundle, prepare
from .metrics import METRICS, Metric
from .positions import PositionProfile, position_profiles
from .prompts import ReferencedPrompt
from .run import ScheduleRun, num_steps, run_bundle


@dataclass(frozen=True)
class Figure:
    """A metric of one row; ``difference`` is relative to full depth, paired by example."""

    estimate: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Row:
    """One bundle at one schedule; speed-ups are nan if nothing was generated."""

    prepared: PreparedBundle
    run: ScheduleRun
    device: str  # cpu, or the name that the GPU reports
    speedup: float  # wall-clock of full depth ÷ this schedule's: all texts, prompts included
    token_speedup: float  # the same per generated token, as texts may differ in length
    # With ``equal_lengths`` both are equal: full depth generates the same number per prompt.
    figures: Mapping[str, Figure]  # by metric name
    positions: PositionProfile | None = None
    disturbed: str = ""  # evidence that the machine did other work meanwhile; "" if there is none

    @property
    def label(self) -> str:
        """Label of the bundle."""
        return self.prepared.choice.label


@dataclass(frozen=True)
class Spread:
    """Mean, minimum and maximum of a figure over several checkpoints."""

    mean: float
    low: float
    high: float


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
    """Text that one row generated for one prompt."""

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

    @property
    def examples(self) -> tuple[Example, ...]:
        """``config.num_shown`` prompts, evenly spread over the data; none if there are no texts."""
        if self.config.score_only:
            return ()
        count = min(self.config.num_shown, len(self.prompts))
        places = [index * len(self.prompts) // count for index in range(count)]
        return tuple(
            Example(
                self.prompts[place],
                tuple(
                    Text(row.label, row.run.name, row.run.outcomes[place].text) for row in self.rows
                ),
            )
            for place in places
        )

    @property
    def averages(self) -> tuple[Average, ...]:
        """Averages of bundles that share a label; empty if all labels differ."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.label, row.run.name), []).append(row)
        return tuple(
            _average(label, schedule, rows)
            for (label, schedule), rows in groups.items()
            if len(rows) > 1
        )


def evaluate(
    config: EvaluationConfig,
    open_generator: OpenGenerator | None = None,
    events: Events | None = None,
) -> Evaluation:
    """Run the bundles one after another, each at every schedule.

    ``open_generator`` opens the bundle at a path for batches of ``config.batch_size``; the default
    is ``Generator.open``. ``events`` receives the progress.

    Raises MissingExtraError (a metric's library) and the errors of ``prepare`` before any work.
    """
    metrics = create_metrics(config.metrics, score_only=config.score_only)
    inputs = prepare(config)
    events = events or Events()
    events.planned("", inputs.notes)
    open_generator = open_generator or partial(Generator.open, max_batch_size=config.batch_size)
    steps = sum(num_steps(prepared, config.batch_size) for prepared in inputs.bundles)
    events.stage("evaluating", steps)
    rows: list[Row] = []
    for prepared in inputs.bundles:
        with open_generator(prepared.choice.path) as generator:
            prepared.bundle.check_same(generator.bundle)
            runs = run_bundle(
                generator,
                prepared,
                batch_size=config.batch_size,
                temperature=config.temperature,
                seed=config.seed,
                advance=events.advance,
                score_only=config.score_only,
                equal_lengths=config.equal_lengths,
            )
            device = "cpu" if generator.device is None else generator.device.name
        rows += _rows(config, metrics, prepared, runs, device)
    return Evaluation(config, inputs.prompts, metrics, tuple(rows), inputs.num_dropped)


def create_metrics(options: MetricOptions, *, score_only: bool = False) -> dict[str, Metric]:
    """Return the metrics of the registry that ``options`` select, in its order.

    ``score_only`` leaves only those that need no text.
    """
    kinds = {name: METRICS.load(name) for name in METRICS}
    created = {
        name: kind.create(options)
        for name, kind in kinds.items()
        if not (score_only and kind.needs_text)
    }
    return {name: metric for name, metric in created.items() if metric is not None}


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
    speedups = [_speedups(config, runs[0], run) for run in runs]
    return [
        Row(
            prepared=prepared,
            run=run,
            device=device,
            speedup=speedup,
            token_speedup=token_speedup,
            figures={
                name: Figure(
                    sample[name].estimate(config.confidence),
                    sample[name].difference(samples[0][name], config.confidence),
                )
                for name in metrics
            },
            positions=profile,
            disturbed=_disturbance(prepared, run, min(speedup, token_speedup), device),
        )
        for run, sample, profile, (speedup, token_speedup) in zip(
            runs, samples, profiles, speedups, strict=True
        )
    ]


def _speedups(config: EvaluationConfig, full: ScheduleRun, run: ScheduleRun) -> tuple[float, float]:
    """Return the speed-ups of whole calls and per generated token."""
    if config.score_only:
        return nan, nan
    if config.equal_lengths and run is not full:
        speedup = sum(run.full_depth_seconds) / run.wall_seconds
        return speedup, speedup
    return (
        full.wall_seconds / run.wall_seconds,
        full.seconds_per_token / run.seconds_per_token,
    )


def _disturbance(prepared: PreparedBundle, run: ScheduleRun, speedup: float, device: str) -> str:
    """Compare with bytes the smaller speed-up, which differences in length cannot inflate."""
    cost = CostModel(prepared.bundle.manifest, on_device=device != "cpu")
    full = ExitSchedule.full(run.schedule.num_layers)
    last = run.schedule.plan(run.schedule.horizon)
    allowed = cost.step(full.plan(0), [1]).total / cost.step(last, [1]).total
    return disturbance((), speedup, allowed)


def _average(label: str, schedule: str, rows: Sequence[Row]) -> Average:
    return Average(
        label=label,
        schedule=schedule,
        num_bundles=len(rows),
        speedup=_spread([row.speedup for row in rows]),
        figures={
            name: _spread([row.figures[name].estimate.value for row in rows])
            for name in rows[0].figures
        },
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(mean(values), min(values), max(values))
