"""Drafts in an evaluation: generate the texts of full depth again and compare both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ...runtime.drafting.config import DraftConfig
from ...runtime.drafting.memory import DraftMemory
from ...runtime.generator import Generator
from ...runtime.measuring.meter import NOT_TIMED, Ratio
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import CompletionOutput, Drafts
from ...runtime.tokens.sampling import SamplingParams
from .inputs import PreparedBundle


@dataclass
class DraftRun:
    """All texts of one bundle at full depth with drafts, generated chunk by chunk.

    ``memory`` begins with the bundle's n-grams, as in normal use, and learns from earlier prompts.
    """

    name: str  # as given
    draft: DraftConfig
    memory: DraftMemory
    chunk_seconds: list[float] = field(default_factory=list)  # prompts included, median of passes
    plain_seconds: list[float] = field(default_factory=list)  # of the same chunks without drafts
    num_texts: int = 0
    num_equal: int = 0  # texts whose tokens, text and reason to end are those without drafts
    counts: Drafts = field(default_factory=Drafts)
    gain: Ratio = NOT_TIMED  # full depth's seconds without drafts ÷ with them

    def count_speed(self, gain: Ratio) -> None:
        """Set the gain, unless it exceeds what the number of passes allows."""
        self.gain = gain.within(self.counts.tokens_per_pass, "passes allow")

    def warm_up(
        self, generator: Generator, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> None:
        """Generate a few tokens without learning from them."""
        self._generate(generator, prompts, [params] * len(prompts), self.memory.fresh())

    def run(
        self,
        generator: Generator,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        plain: Sequence[CompletionOutput],
        *,
        is_first: bool,
        is_new: bool,
    ) -> float:
        """Generate a chunk, compare it with ``plain``, texts without drafts; return the seconds.

        ``is_first``: a pass over all prompts begins, so n-grams of the previous pass are forgotten.
        Only ``is_new`` chunks are counted.
        """
        if is_first:
            self.memory.tables.clear()
        start = perf_counter()
        completions = self._generate(generator, prompts, params, self.memory)
        seconds = perf_counter() - start
        if is_new:
            self.num_texts += len(plain)
            self.num_equal += sum(
                _text(one) == _text(other) for one, other in zip(completions, plain, strict=True)
            )
            for one in completions:
                self.counts = self.counts.plus(one.drafts or Drafts())
        return seconds

    def _generate(
        self,
        generator: Generator,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        memory: DraftMemory,
    ) -> list[CompletionOutput]:
        full = ExitSchedule.full(generator.model.num_layers)
        requests = generator.make_requests(list(prompts), params)
        results = generator.generate_requests(
            requests, [full] * len(requests), draft=str(self.draft), draft_memory=memory
        )
        return [result.outputs[0] for result in results]


@dataclass(frozen=True)
class DraftRow:
    """One bundle at full depth with drafts; its quality is that of full depth."""

    prepared: PreparedBundle
    run: DraftRun


def _text(completion: CompletionOutput) -> tuple[object, ...]:
    """Return what drafts must not change."""
    return (
        completion.token_ids,
        completion.text,
        completion.finish_reason,
        completion.stop_reason,
        completion.logprobs,
    )
