"""Benchmark of drafts: the same texts with and without them, repetitions interleaved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median

from typing_extensions import override

from ...engines.errors import SkipDecError, UsageError
from ...engines.host.events import Events
from ..drafting.memory import DraftMemory
from ..generator import Generator
from ..scheduling.drafters import Drafter, RowDrafts, WrappedDrafter
from ..tokens.outputs import Drafts
from ..tokens.sampling import SamplingParams
from .bench import random_prompts
from .config import BenchConfig
from .drafted_runs import DraftedRun, run_with_drafts

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


class ForcedDrafter(WrappedDrafter):
    """Pays for another drafter's proposals, and proposes what is right with a given probability.

    Drafts of a model with random weights never hold; this shows what drafts gain where they do.
    """

    def __init__(
        self, drafter: Drafter, answers: Mapping[int, Sequence[int]], share: float, random: Random
    ) -> None:
        """``answers`` are the texts that the rows will write, by the row's number."""
        super().__init__(drafter)
        self._answers = answers
        self._share = share
        self._random = random

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Sequence[int]]:
        super().propose(rows, most)
        return [
            [
                token if self._random.random() < self._share else (token + 1 if token == 0 else 0)
                for token in self._answers[one.row.number][len(one.row.token_ids) :][:most]
            ]
            for one in rows
        ]


def measure_drafts(
    generator: Generator, config: BenchConfig, events: Events | None = None
) -> tuple[DraftMeasurement, ...]:
    """Measure each draft of ``config`` beside no drafts, at every schedule and batch size.

    Each repetition has prompts of its own, and n-grams of earlier texts are forgotten before each
    call, so no draft knows a text that it is about to write. Raises what `Generator.running_batch`
    raises, and SkipDecError if a text differs from the one without drafts.
    """
    if config.runtime == "native":
        raise UsageError(
            "draft", "is measured in Python's runtime; leave out --runtime native, or --draft"
        )
    schedules = config.schedules or ("full",)
    events = events or Events()
    events.stage("measuring", len(config.batch_sizes) * len(schedules) * config.repetitions)
    benchmark = _Benchmark(generator, config, events)
    return tuple(
        measurement
        for size in config.batch_sizes
        for schedule in schedules
        for measurement in benchmark.measure(size, schedule)
    )


class _Benchmark:
    """Calls with and without drafts; what a draft learns of costs and acceptance is its own."""

    def __init__(self, generator: Generator, config: BenchConfig, events: Events) -> None:
        self._generator = generator
        self._config = config
        self._events = events
        self._memories = {draft: DraftMemory() for draft in ("off", *config.drafts)}

    def measure(self, batch_size: int, schedule: str) -> list[DraftMeasurement]:
        config = self._config
        for draft in self._memories:
            self._run(self._prompts(batch_size, config.seed), schedule, draft, _WARMUP_TOKENS)
        runs: dict[str, list[DraftedRun]] = {draft: [] for draft in self._memories}
        for repetition in range(config.repetitions):
            prompts = self._prompts(batch_size, config.seed + repetition)
            plain = self._run(prompts, schedule, "off", config.num_tokens)
            runs["off"].append(plain)
            for draft in config.drafts:
                run = self._run(prompts, schedule, draft, config.num_tokens, plain.texts)
                _require_equal(plain, run, draft)
                runs[draft].append(run)
            self._events.advance(f"batch {batch_size}, {schedule}, repetition {repetition + 1}")
        return [
            _summarise(config, batch_size, schedule, draft, runs["off"], runs[draft])
            for draft in runs
        ]

    def _prompts(self, batch_size: int, seed: int) -> list[list[int]]:
        return random_prompts(
            self._generator.model.vocab_size,
            batch_size=batch_size,
            prompt_length=self._config.prompt_length,
            seed=seed,
        )

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        schedule: str,
        draft: str,
        num_tokens: int,
        answers: Sequence[Sequence[int]] | None = None,
    ) -> DraftedRun:
        """Run one call; ``answers`` are its texts, if drafts may be forced to be right."""
        memory = self._memories[draft]
        memory.tables.clear()
        wrap = None
        if self._config.accept is not None and answers is not None:
            known = dict(enumerate(answers))
            share, random = self._config.accept, Random(self._config.seed)
            wrap = partial(ForcedDrafter, answers=known, share=share, random=random)
        return run_with_drafts(
            self._generator,
            prompts,
            SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True),
            schedule=schedule,
            draft=draft,
            memory=memory,
            wrap=wrap,
        )


def _require_equal(plain: DraftedRun, drafted: DraftedRun, draft: str) -> None:
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
    plain: Sequence[DraftedRun],
    drafted: Sequence[DraftedRun],
) -> DraftMeasurement:
    counted = [one.drafts for run in drafted for one in run.completions if one.drafts]
    total = Drafts(
        sum(one.passes for one in counted),
        sum(one.drafted for one in counted),
        sum(one.accepted for one in counted),
    )
    pairs = list(zip(plain, drafted, strict=True))
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
    )
