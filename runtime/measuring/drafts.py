"""Benchmark of drafts: the same texts with and without them, timed by `meter`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median
from time import perf_counter

from ...engines.errors import SkipDecError
from ...engines.host.events import Events
from ..generator import Generator
from ..libskipdec.calls import NativeCalls
from ..schedule import ExitSchedule
from ..tokens.outputs import CompletionOutput, Drafts
from ..tokens.sampling import SamplingParams
from .config import BenchConfig
from .meter import Ratio, Turns, measure
from .prompts import Batch, batches

_WARMUP_TOKENS = 8
_RANDOM_BATCHES = 8
_PASSES = count()  # numbers this process's passes through all prompts


@dataclass(frozen=True)
class DraftMeasurement:
    """One draft at one schedule and batch size, against the same calls without drafts.

    Gains are of whole calls unless named otherwise.
    """

    batch_size: int
    schedule: str  # as requested
    draft: str  # canonical; "off" for the calls without drafts
    tokens_per_pass: float
    acceptance: float | None  # of drafted tokens; None if none was drafted
    draft_share: float  # seconds of drafting ÷ those of all steps
    wall_seconds: float  # whole call, median
    turns: int  # of each draft
    gain: Ratio  # whole call, prompt included
    decode_gain: Ratio  # steps after the prompt
    runtime: str  # python or native
    of_python: float | None  # native only: seconds of its steps ÷ those of Python


_Variant = tuple[str, str]  # draft and runtime
_Key = tuple[str, str, str]  # draft, runtime, and "call" or "steps"


@dataclass(frozen=True)
class DraftedRun:
    """One run: a completion for each prompt, and the times of the call."""

    completions: tuple[CompletionOutput, ...]
    decode_seconds: float  # of the steps after the prompts, including sampling and drafting
    draft_seconds: float
    wall_seconds: float


def measure_drafts(
    generator: Generator,
    config: BenchConfig,
    events: Events | None = None,
    native: Mapping[str, NativeCalls] | None = None,
) -> tuple[DraftMeasurement, ...]:
    """Compare each draft of ``config`` with no drafts, at every schedule and batch size.

    N-grams of earlier texts are forgotten before each pass through the prompts, so no draft knows a
    text that it is about to write. Texts of ``config.prompts`` end at an end-of-text token, others
    have ``config.num_tokens``. Above temperature 0, each batch's place among them is its seed.

    ``native`` has libskipdec opened with each draft and with "off"; it runs each call again after
    ``generator``. Raises UsageError or ScheduleError for a draft or a schedule that does not fit
    before anything runs, what `Generator.running_batch` raises, and SkipDecError if a text differs
    from the one without drafts.
    """
    for draft in config.drafts:
        generator.drafts.resolve(draft)
    schedules = {
        text: generator.resolve_schedule(text, max_tokens=config.num_tokens)
        for text in config.schedules or ("full",)
    }
    events = events or Events()
    by_size = batches(generator, config, number=_RANDOM_BATCHES)
    events.stage("measuring", len(by_size) * len(schedules))
    found: list[DraftMeasurement] = []
    for size, prompts in by_size.items():
        for text, schedule in schedules.items():
            one = _Benchmark(generator, config, native or {}, size, prompts, text, schedule)
            found += one.measure()
            events.advance(f"batch {size}, {text}")
    return tuple(found)


class _Benchmark:
    """Calls at one schedule and batch size, with and without drafts.

    Each draft learns costs and acceptance of its own.
    """

    def __init__(
        self,
        generator: Generator,
        config: BenchConfig,
        native: Mapping[str, NativeCalls],
        batch_size: int,
        prompts: Sequence[Batch],
        name: str,
        schedule: ExitSchedule,
    ) -> None:
        self._generator = generator
        self._config = config
        self._native = native
        self._batch_size, self._name, self._schedule = batch_size, name, schedule
        self._batches = prompts
        self._memories = {
            draft: generator.fresh_draft_memory() for draft in ("off", *config.drafts)
        }
        runtimes = ("python", "native") if native else ("python",)
        variants = [(draft, runtime) for draft in self._memories for runtime in runtimes]
        self._runs: dict[_Variant, list[DraftedRun]] = {variant: [] for variant in variants}
        self._client = ""  # in libskipdec; a new one for each pass, so that its n-grams begin anew

    def measure(self) -> list[DraftMeasurement]:
        """Warm up, take turns, and return a measurement per draft and runtime."""
        for variant in self._runs:
            self._run(0, *variant, _WARMUP_TOKENS)
        pairs = [
            ((draft, runtime, part), ("off", runtime, part))
            for draft, runtime in self._runs
            for part in ("call", "steps")
            if draft != "off"
        ]
        turns = measure(self._turn, pairs, items=len(self._batches), seconds=self._config.seconds)
        return [self._summarise(*variant, turns) for variant in self._runs]

    def _turn(self, item: int) -> dict[_Key, float]:
        if item == 0:
            self._client = f"pass {next(_PASSES)}"
            for memory in self._memories.values():
                memory.tables.clear()
        seconds: dict[_Key, float] = {}
        for (draft, runtime), runs in self._runs.items():
            run = self._run(item, draft, runtime, self._config.num_tokens)
            runs.append(run)
            _require_equal(self._runs["off", runtime][-1], run, draft)
            seconds[draft, runtime, "call"] = run.wall_seconds
            seconds[draft, runtime, "steps"] = run.decode_seconds
        return seconds

    def _run(self, item: int, draft: str, runtime: str, num_tokens: int) -> DraftedRun:
        prompts = self._batches[item]
        params = SamplingParams.fixed(
            temperature=self._config.temperature,
            seed=item,
            max_tokens=num_tokens,
            ignore_eos=self._config.prompts is None,
        )
        if runtime == "python":
            return self._run_python(prompts, draft, params)
        native = self._native[draft]
        made = native.run(prompts, params, schedule=self._schedule, client=self._client)
        completions = tuple(one.outputs[0] for one in made.outputs)
        seconds = made.decode_seconds + made.sampling_seconds
        return DraftedRun(completions, seconds, made.draft_seconds, made.wall_seconds)

    def _run_python(self, prompts: Batch, draft: str, params: SamplingParams) -> DraftedRun:
        """Run ``prompts`` together with the draft's own memory and without a prefix cache."""
        memory = self._memories[draft]
        with self._generator.running_batch(
            draft=draft, draft_memory=memory, prefix_cache=False
        ) as batch:
            start = perf_counter()
            numbers = [batch.add(prompt, params, schedule=self._schedule) for prompt in prompts]
            while batch.is_busy:
                batch.step()
            wall_seconds = perf_counter() - start
            completions = tuple(batch.take(number).outputs[0] for number in numbers)
            stats = batch.stats()
        seconds = stats.decode_seconds + stats.sampling_seconds
        return DraftedRun(completions, seconds, stats.draft_seconds, wall_seconds)

    def _summarise(self, draft: str, runtime: str, turns: Turns[_Key]) -> DraftMeasurement:
        drafted = self._runs[draft, runtime]
        total = Drafts()
        for run in drafted:
            for one in run.completions:
                total = total.plus(one.drafts or Drafts())
        call, steps = (
            turns.ratio((draft, runtime, part), ("off", runtime, part)).within(
                total.tokens_per_pass, "passes allow"
            )
            for part in ("call", "steps")
        )
        of_python = turns.ratio((draft, "python", "steps"), (draft, runtime, "steps")).value
        return DraftMeasurement(
            batch_size=self._batch_size,
            schedule=self._name,
            draft=draft,
            tokens_per_pass=total.tokens_per_pass,
            acceptance=total.acceptance,
            draft_share=median(run.draft_seconds / run.decode_seconds for run in drafted),
            wall_seconds=sum(turns.seconds((draft, runtime, "call"))) / len(self._batches),
            turns=len(drafted),
            gain=call,
            decode_gain=steps,
            runtime=runtime,
            of_python=of_python if runtime == "native" else None,
        )


def _require_equal(plain: DraftedRun, drafted: DraftedRun, draft: str) -> None:
    for row, (expected, found) in enumerate(
        zip(plain.completions, drafted.completions, strict=True)
    ):
        if expected.token_ids != found.token_ids:
            raise SkipDecError(
                "draft", f"{draft} changed the text of row {row}, which it must not; report this"
            )
