"""Runs of prompts with drafters that a measurement wraps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from ..drafting.memory import DraftMemory
from ..generator import Generator
from ..schedule import ExitSchedule
from ..scheduling.drafted_decoding import DraftedDecoding
from ..scheduling.drafters import Drafter
from ..tokens.outputs import CompletionOutput
from ..tokens.sampling import SamplingParams


class StepSeconds(Protocol):
    """Where the time of a run's steps went; drafts are part of ``decode_seconds``."""

    @property
    def decode_seconds(self) -> float:
        """Seconds of the steps behind the prompts."""

    @property
    def sampling_seconds(self) -> float:
        """Seconds of drawing tokens."""

    @property
    def draft_seconds(self) -> float:
        """Seconds of drafting."""


@dataclass(frozen=True)
class DraftedRun:
    """One run: a completion for each prompt, its times, and the seconds of the whole call."""

    completions: tuple[CompletionOutput, ...]
    stats: StepSeconds
    wall_seconds: float

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """The tokens of each completion."""
        return [one.token_ids for one in self.completions]

    @property
    def decode_seconds(self) -> float:
        """Seconds of the steps behind the prompts."""
        return self.stats.decode_seconds + self.stats.sampling_seconds


def run_with_drafts(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    schedule: str | ExitSchedule,
    draft: str,
    memory: DraftMemory,
    wrap: Callable[[Drafter], Drafter] | None = None,
) -> DraftedRun:
    """Run ``prompts`` together, with ``draft`` and what ``memory`` knows, without a prefix cache.

    Drafters are replaced by ``wrap(drafter)``, if given. Raises what `Generator.running_batch`
    raises.
    """
    with generator.running_batch(draft=draft, draft_memory=memory, prefix_cache=False) as batch:
        if wrap is not None:
            assert isinstance(batch.decoding, DraftedDecoding)
            batch.decoding.replace_drafters(wrap)
        start = perf_counter()
        numbers = [batch.add(list(prompt), params, schedule=schedule) for prompt in prompts]
        while batch.is_busy:
            batch.step()
        wall_seconds = perf_counter() - start
        completions = tuple(batch.take(number).outputs[0] for number in numbers)
        return DraftedRun(completions, batch.stats(), wall_seconds)
