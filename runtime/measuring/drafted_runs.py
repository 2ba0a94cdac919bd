"""Runs of prompts with drafters that a measurement wraps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from ..drafting.memory import DraftMemory
from ..generator import Generator
from ..schedule import ExitSchedule
from ..scheduling.drafted_decoding import DraftedDecoding
from ..scheduling.drafters import Drafter
from ..tokens.outputs import CompletionOutput
from ..tokens.sampling import SamplingParams


@dataclass(frozen=True)
class DraftedRun:
    """One run: a completion for each prompt, its times, and the seconds of the whole call."""

    completions: tuple[CompletionOutput, ...]
    decode_seconds: float  # of the steps behind the prompts, with drawing tokens and drafting
    draft_seconds: float
    wall_seconds: float

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """The tokens of each completion."""
        return [one.token_ids for one in self.completions]


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
        stats = batch.stats()
        seconds = stats.decode_seconds + stats.sampling_seconds
        return DraftedRun(completions, seconds, stats.draft_seconds, wall_seconds)
