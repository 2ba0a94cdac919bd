"""Benchmark of drafts: the same texts with and without them, repetitions interleaved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from time import perf_counter
from typing import Protocol

from typing_extensions import override

from ...engines.errors import SkipDecError
from ...engines.host.events import Events
from ..generator import Generator
from ..libskipdec.calls import NativeCalls
from ..scheduling.drafted_decoding import DraftedDecoding
from ..scheduling.drafters import Drafter, RowDrafts
from ..scheduling.running_request import Row
from ..tokens.outputs import CompletionOutput, Drafts
from ..tokens.sampling import SamplingParams
from .bench import random_prompts
from .config import BenchConfig

_WARMUP_TOKENS = 8


@dataclass(frozen=True)
class DraftMeasurement:
    """One draft at one schedule and batch size, against the same calls without drafts.

    Gains are medians of repetitions, of whole calls unless named otherwise.
    """

    batch_size: int
    schedule: str  # as requested
    draft: str  # canonical; "off" for the calls without drafts
    forced_acceptance: float | None  # drafts were made right with this probability
    tokens_per_pass: float
    acceptance: float | None  # of drafted tokens; None if none was drafted
    draft_share: float  # seconds of drafting ÷ those of all steps
    wall_seconds: float  # whole call, median
    gain: float  # whole call, prompt included
    decode_gain: float  # steps after the prompt
    runtime: str  # python or native
    of_python: float | None  # native only: seconds of steps over those of Python's run before


class _StepSeconds(Protocol):
    """Where the time of a call's steps went; drafts are part of ``decode_seconds``."""

    @property
    def decode_seconds(self) -> float: ...

    @property
    def sampling_seconds(self) -> float: ...

    @property
    def draft_seconds(self) -> float: ...


@dataclass(frozen=True)
class _Run:
    """One call: its texts, what its drafts came to, and where its time went."""

    wall_seconds: float
    completions: tuple[CompletionOutput, ...]
    stats: _StepSeconds

    @property
    def decode_seconds(self) -> float:
        return self.stats.decode_seconds + self.stats.sampling_seconds


class ForcedDrafter(Drafter):
    """Pays for another drafter's proposals, and proposes what is right with a given probability.

    Drafts of a model with random weights never hold; this shows what drafts gain where they do.
    """

    def __init__(
        self, drafter: Drafter, answers: Mapping[int, Sequence[int]], share: float, random: Random
    ) -> None:
        """``answers`` are the texts that the rows will write, by the row's number."""
        self.source = drafter.source
        self._drafter = drafter
        self._answers = answers
        self._share = share
        self._random = random

    @property
    @override
    def draft_steps(self) -> int:
        return self._drafter.draft_steps

    @override
    def can_draft(self, row: Row) -> bool:
        return self._drafter.can_draft(row)

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Sequence[int]]:
        self._drafter.propose(rows, most)
        return [
            [
                token if self._random.random() < self._share else (token + 1 if token == 0 else 0)
                for token in self._answers[one.row.number][len(one.row.token_ids) :][:most]
            ]
            for one in rows
        ]

    @override
    def learn(self, row: RowDrafts) -> None:
        self._drafter.learn(row)


def measure_drafts(
    generator: Generator,
    config: BenchConfig,
    events: Events | None = None,
    native: Mapping[str, NativeCalls] | None = None,
) -> tuple[DraftMeasurement, ...]:
    """Measure each draft of ``config`` beside no drafts, at every schedule and batch size.

    Each repetition has prompts of its own, and n-grams of earlier texts are forgotten before each
    call, so no draft knows a text that it is about to write. ``native`` has libskipdec opened with
    each draft and with "off"; it runs each call again after ``generator``. Raises what
    `Generator.running_batch` raises, and SkipDecError if a text differs from the one without
    drafts.
    """
    schedules = config.schedules or ("full",)
    events = events or Events()
    events.stage("measuring", len(config.batch_sizes) * len(schedules) * config.repetitions)
    return tuple(
        measurement
        for size in config.batch_sizes
        for schedule in schedules
        for measurement in _measure(generator, config, size, schedule, events, native)
    )


def _measure(
    generator: Generator,
    config: BenchConfig,
    batch_size: int,
    schedule: str,
    events: Events,
    native: Mapping[str, NativeCalls] | None,
) -> list[DraftMeasurement]:
    variants = ("off", *config.drafts)
    timed: dict[str, Callable[..., _Run]] = {"python": partial(_run, generator, config)}
    if native:
        timed["native"] = partial(_run_natively, generator, native)
    for draft in variants:
        prompts = _prompts(generator, config, batch_size, config.seed)
        for run in timed.values():
            run(prompts, schedule, draft, _WARMUP_TOKENS)
    runs: dict[tuple[str, str], list[_Run]] = {
        (draft, runtime): [] for draft in variants for runtime in timed
    }
    for repetition in range(config.repetitions):
        prompts = _prompts(generator, config, batch_size, config.seed + repetition)
        answers: dict[int, Sequence[int]] = {}
        for draft, runtime in runs:
            made = timed[runtime](prompts, schedule, draft, config.num_tokens, answers)
            runs[draft, runtime].append(made)
            _require_equal(runs["off", runtime][-1], made, draft)
            answers = answers or {row: one.token_ids for row, one in enumerate(made.completions)}
        events.advance(f"batch {batch_size}, {schedule}, repetition {repetition + 1}")
    return [
        _summarise(config, batch_size, schedule, draft, runtime, runs) for draft, runtime in runs
    ]


def _prompts(
    generator: Generator, config: BenchConfig, batch_size: int, seed: int
) -> list[list[int]]:
    return random_prompts(
        generator.model.vocab_size,
        batch_size=batch_size,
        prompt_length=config.prompt_length,
        seed=seed,
    )


def _run(
    generator: Generator,
    config: BenchConfig,
    prompts: Sequence[Sequence[int]],
    schedule: str,
    draft: str,
    num_tokens: int,
    answers: Mapping[int, Sequence[int]] | None = None,
) -> _Run:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    with generator.running_batch(draft=draft, prefix_cache=False) as batch:
        if isinstance(batch.decoding, DraftedDecoding):
            batch.decoding.forget_texts()
            if config.accept is not None and answers is not None:
                share, random = config.accept, Random(config.seed)
                batch.decoding.replace_drafters(
                    lambda drafter: ForcedDrafter(drafter, answers, share, random)
                )
        start = perf_counter()
        numbers = [batch.add(prompt, params, schedule=schedule) for prompt in prompts]
        while batch.is_busy:
            batch.step()
        wall_seconds = perf_counter() - start
        completions = tuple(batch.take(number).outputs[0] for number in numbers)
        return _Run(wall_seconds, completions, batch.stats())


def _run_natively(
    generator: Generator,
    native: Mapping[str, NativeCalls],
    prompts: Sequence[Sequence[int]],
    schedule: str,
    draft: str,
    num_tokens: int,
    _answers: Mapping[int, Sequence[int]] | None = None,  # to force, which Python alone can
) -> _Run:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    resolved = generator.resolve_schedule(schedule, max_tokens=num_tokens)
    made = native[draft].run(prompts, params, schedule=resolved)
    return _Run(made.wall_seconds, tuple(one.outputs[0] for one in made.outputs), made)


def _require_equal(plain: _Run, drafted: _Run, draft: str) -> None:
    for row, (expected, found) in enumerate(
        zip(plain.completions, drafted.completions, strict=True)
    ):
        if expected.token_ids != found.token_ids:
            raise SkipDecError(
                "draft", f"{draft} changed the text of row {row}, which it must not; report this"
            )


def _summarise(
    config: BenchConfig,
    batch_size: int,
    schedule: str,
    draft: str,
    runtime: str,
    runs: Mapping[tuple[str, str], Sequence[_Run]],
) -> DraftMeasurement:
    drafted = runs[draft, runtime]
    counted = [one.drafts for run in drafted for one in run.completions if one.drafts]
    total = Drafts(
        sum(one.passes for one in counted),
        sum(one.drafted for one in counted),
        sum(one.accepted for one in counted),
    )
    pairs = list(zip(runs["off", runtime], drafted, strict=True))
    beside = zip(runs[draft, "python"], drafted, strict=True)
    of_python = median(own.decode_seconds / python.decode_seconds for python, own in beside)
    return DraftMeasurement(
        batch_size=batch_size,
        schedule=schedule,
        draft=draft,
        forced_acceptance=None if draft == "off" else config.accept,
        tokens_per_pass=total.tokens_per_pass,
        acceptance=total.acceptance,
        draft_share=median(run.stats.draft_seconds / run.decode_seconds for run in drafted),
        wall_seconds=median(run.wall_seconds for run in drafted),
        gain=median(off.wall_seconds / on.wall_seconds for off, on in pairs),
        decode_gain=median(off.decode_seconds / on.decode_seconds for off, on in pairs),
        runtime=runtime,
        of_python=of_python if runtime == "native" else None,
    )
