"""Benchmark of drafts: the same texts with and without them, repetitions interleaved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median

from typing_extensions import override

from ...engines.errors import SkipDecError
from ...engines.host.events import Events
from ..drafting.acceptance import Guesses
from ..drafting.memory import DraftMemory
from ..generator import Generator
from ..libskipdec.calls import NativeCalls
from ..scheduling.drafters import Drafter, RowDrafts, WrappedDrafter
from ..tokens.outputs import Drafts
from ..tokens.sampling import SamplingParams
from .bench import bundle_prompts
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
    runtime: str  # python or native
    of_python: float | None  # native only: seconds of steps over those of Python's run before


_Runs = dict[tuple[str, str], list[DraftedRun]]  # by draft and runtime


class ForcedDrafter(WrappedDrafter):
    """Pays for another drafter's proposals, and proposes what is right with a given probability.

    Drafts of a model with random weights never hold; this shows what drafts gain where they do.
    """

    def __init__(
        self, drafter: Drafter, answers: Mapping[int, Sequence[int]], share: float, random: Random
    ) -> None:
        """``answers`` are the texts that the rows will write, by the row's number."""
        super().__init__(drafter)
        self.priors = (0.5,)  # no guess is likelier than another
        self._answers = answers
        self._share = share
        self._random = random

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        super().propose(rows, most)
        return [
            Guesses.alike(
                [
                    token if self._random.random() < self._share else int(token == 0)
                    for token in self._answers[one.row.number][len(one.row.token_ids) :][:most]
                ]
            )
            for one in rows
        ]


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
    benchmark = _Benchmark(generator, config, events, native or {})
    return tuple(
        measurement
        for size in config.batch_sizes
        for schedule in schedules
        for measurement in benchmark.measure(size, schedule)
    )


class _Benchmark:
    """Calls with and without drafts; what a draft learns of costs and acceptance is its own."""

    def __init__(
        self,
        generator: Generator,
        config: BenchConfig,
        events: Events,
        native: Mapping[str, NativeCalls],
    ) -> None:
        self._generator = generator
        self._config = config
        self._events = events
        self._native = native
        self._memories = {draft: DraftMemory() for draft in ("off", *config.drafts)}
        runtimes = ("python", "native") if native else ("python",)
        self._variants = [(draft, runtime) for draft in self._memories for runtime in runtimes]

    def measure(self, batch_size: int, schedule: str) -> list[DraftMeasurement]:
        config = self._config
        for draft, runtime in self._variants:
            prompts = self._prompts(batch_size, config.seed)
            self._run(prompts, schedule, draft, runtime, _WARMUP_TOKENS)
        runs: _Runs = {variant: [] for variant in self._variants}
        for repetition in range(config.repetitions):
            prompts = self._prompts(batch_size, config.seed + repetition)
            for draft, runtime in self._variants:
                answers = runs["off", "python"][-1].texts if draft != "off" else None
                run = self._run(prompts, schedule, draft, runtime, config.num_tokens, answers)
                runs[draft, runtime].append(run)
                _require_equal(runs["off", runtime][-1], run, draft)
            self._events.advance(f"batch {batch_size}, {schedule}, repetition {repetition + 1}")
        return [
            _summarise(config, batch_size, schedule, draft, runtime, runs)
            for draft, runtime in self._variants
        ]

    def _prompts(self, batch_size: int, seed: int) -> list[list[int]]:
        return bundle_prompts(
            self._generator,
            batch_size=batch_size,
            prompt_length=self._config.prompt_length,
            seed=seed,
        )

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        schedule: str,
        draft: str,
        runtime: str,
        num_tokens: int,
        answers: Sequence[Sequence[int]] | None = None,
    ) -> DraftedRun:
        """Run one call; ``answers`` are its texts, if drafts may be forced to be right."""
        params = SamplingParams.fixed(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        if runtime == "native":
            resolved = self._generator.resolve_schedule(schedule, max_tokens=num_tokens)
            made = self._native[draft].run(prompts, params, schedule=resolved)
            completions = tuple(one.outputs[0] for one in made.outputs)
            return DraftedRun(completions, made, made.wall_seconds)
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
            params,
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
    runtime: str,
    runs: _Runs,
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
