"""Evaluate quality, depth and measured speed of bundles at their exit schedules.

Schedules take turns, a chunk of prompts each, so that drift of the machine affects all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, nan
from statistics import mean
from time import perf_counter

from ...engines.host.events import Events
from ...runtime.generator import Generator, OpenGenerator
from ...runtime.measuring.bench import disturbance
from ...runtime.measuring.cost import CostModel
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput
from ...runtime.tokens.sampling import SamplingParams
from .bootstrap import Bootstrap, Estimate
from .config import EvaluationConfig
from .drafts import DraftRow, DraftRun
from .inputs import EncodedPrompt, PreparedBundle, ReferencedPrompt, prepare
from .metrics import METRICS, Metric, Outcome
from .positions import PositionProfile, position_profiles

_WARMUP_TOKENS = 4
Advance = Callable[[str], None]  # called with a label after each chunk and schedule


@dataclass
class ScheduleRun:
    """All texts of one bundle at one schedule, in the order of the prompts."""

    name: str  # the schedule as given
    schedule: ExitSchedule
    outcomes: list[Outcome] = field(default_factory=list)
    chunk_seconds: list[float] = field(default_factory=list)  # wall-clock of generating each chunk
    full_depth_seconds: list[float] = field(default_factory=list)  # of equally long texts

    @property
    def wall_seconds(self) -> float:
        """Time of all chunks including their prompts, without scoring the references."""
        return sum(self.chunk_seconds)

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens, ends of text included."""
        return sum(len(outcome.layers_per_token) for outcome in self.outcomes)

    @property
    def seconds_per_token(self) -> float:
        """Wall-clock seconds per generated token, over all rows of a chunk together."""
        return self.wall_seconds / self.num_tokens


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
    drafts: tuple[DraftRow, ...] = ()

    @property
    def changed_by_drafts(self) -> tuple[DraftRow, ...]:
        """The rows whose drafts changed a text, which only inexact ones may."""
        return tuple(row for row in self.drafts if row.run.num_equal < row.run.num_texts)

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
            Average(
                label=label,
                schedule=schedule,
                num_bundles=len(rows),
                speedup=Spread.over([row.speedup for row in rows]),
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
    """Run the bundles one after another, each at every schedule.

    ``open_generator`` opens the bundle at a path for batches of ``config.batch_size``; the default
    is ``Generator.open``. ``events`` receives the progress.

    Raises MissingExtraError (a metric's library) and the errors of ``prepare`` before any work.
    """
    created = {
        name: kind.create(config.metrics)
        for name in METRICS
        if (kind := METRICS.load(name)) and not (config.score_only and kind.needs_text)
    }
    metrics = {name: metric for name, metric in created.items() if metric is not None}
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
            drafts = [DraftRun(name, draft) for name, draft in prepared.drafts.items()]
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
                    (sample[name] - samples[0][name]).estimate(config.confidence),
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


def run_bundle(
    generator: Generator,
    prepared: PreparedBundle,
    config: EvaluationConfig,
    advance: Advance,
    drafts: Sequence[DraftRun] = (),
) -> list[ScheduleRun]:
    """Generate and score every prompt at every schedule; full depth first, then ``drafts``.

    Two chunks and two schedules run as: chunk 0 full, chunk 0 2x, chunk 1 full, chunk 1 2x.
    Each schedule first generates a few tokens as an unmeasured warm-up. With a temperature, prompt
    i has the seed ``config.seed`` + i at every schedule. With ``score_only`` nothing is generated;
    with ``equal_lengths``, full depth generates as many tokens per prompt after each schedule's
    chunk.
    """
    params = [
        SamplingParams.fixed(
            temperature=config.temperature,
            seed=config.seed + index,
            max_tokens=prepared.room(prompt),
        )
        for index, prompt in enumerate(prepared.prompts)
    ]
    runs = [ScheduleRun(name, schedule) for schedule, name in prepared.schedules.items()]
    if not config.score_only:
        _warm_up(generator, prepared, config.batch_size, drafts)
    for start in range(0, len(params), config.batch_size):
        chunk = slice(start, start + config.batch_size)
        prompts = prepared.prompts[chunk]
        for run in runs:
            completions: list[CompletionOutput | None] = [None] * len(prompts)
            if not config.score_only:
                results, seconds = _generate(generator, prompts, params[chunk], run.schedule)
                run.chunk_seconds.append(seconds)
                generated = [result.outputs[0] for result in results]
                completions = list(generated)
                for draft in drafts if run is runs[0] else ():
                    token_ids = [prompt.token_ids for prompt in prompts]
                    draft.run(generator, token_ids, params[chunk], generated, seconds)
                    advance(f"{prepared.choice.label}, {draft.name}")
            scores = generator.score(
                [prompt.token_ids for prompt in prompts],
                [prompt.target_ids for prompt in prompts],
                schedule=run.schedule,
            )
            run.outcomes += map(_outcome, prompts, scores, completions)
            if config.equal_lengths and run is not runs[0]:
                _time_full_depth(generator, run, prompts, params[chunk])
            advance(f"{prepared.choice.label}, {run.name}")
    return runs


def _warm_up(
    generator: Generator, prepared: PreparedBundle, batch_size: int, drafts: Sequence[DraftRun]
) -> None:
    prompts = prepared.prompts[:batch_size]
    token_ids = [prompt.token_ids for prompt in prompts]
    num_tokens = min(_WARMUP_TOKENS, *map(prepared.room, prompts))
    params = SamplingParams.fixed(temperature=0.0, max_tokens=num_tokens)
    for schedule in prepared.schedules:
        generator.generate(token_ids, params, schedule=schedule)
    for draft in drafts:
        draft.warm_up(generator, token_ids, params)


def _time_full_depth(
    generator: Generator,
    run: ScheduleRun,
    prompts: Sequence[EncodedPrompt],
    params: Sequence[SamplingParams],
) -> None:
    """Time ``run``'s latest chunk at full depth, forcing each text to the same length."""
    lengths = [len(outcome.layers_per_token) for outcome in run.outcomes[-len(prompts) :]]
    forced = [
        chosen.model_copy(update={"max_tokens": length, "ignore_eos": True})
        for chosen, length in zip(params, lengths, strict=True)
    ]
    full = ExitSchedule.full(run.schedule.num_layers)
    run.full_depth_seconds.append(_generate(generator, prompts, forced, full)[1])


def _generate(
    generator: Generator,
    prompts: Sequence[EncodedPrompt],
    params: Sequence[SamplingParams],
    schedule: ExitSchedule,
) -> tuple[list[RequestOutput], float]:
    """Return the texts and the wall-clock seconds of the call."""
    token_ids = [prompt.token_ids for prompt in prompts]
    start = perf_counter()
    results = generator.generate(token_ids, params, schedule=schedule)
    return results, perf_counter() - start


def _outcome(
    prompt: EncodedPrompt, score: ScoreOutput, completion: CompletionOutput | None
) -> Outcome:
    """Return the scored reference with the generated text, if there is one."""
    token_ids: tuple[int, ...] = () if completion is None else completion.token_ids
    is_cut = completion is not None and completion.finish_reason == "length"
    return Outcome(
        text="" if completion is None else completion.text,
        token_ids=token_ids if is_cut else token_ids[:-1],
        is_cut=is_cut,
        layers_per_token=(score if completion is None else completion).layers_per_token,
        references=prompt.references,
        reference_tokens=prompt.reference_tokens,
        logprobs=score.logprobs,
    )
