"""Drafts in an evaluation: the texts of full depth again, sooner, and compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ...runtime.drafting.config import DraftConfig
from ...runtime.drafting.memory import DraftMemory
from ...runtime.generator import Generator
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import CompletionOutput, Drafts
from ...runtime.tokens.sampling import SamplingParams
from .inputs import PreparedBundle


@dataclass
class DraftRun:
    """All texts of one bundle at full depth with drafts, chunk by chunk.

    ``memory`` begins empty, so drafts know the texts of earlier prompts only.
    """

    name: str  # as given
    draft: DraftConfig
    memory: DraftMemory = field(default_factory=DraftMemory)
    chunk_seconds: list[float] = field(default_factory=list)  # wall-clock, prompts included
    plain_seconds: list[float] = field(default_factory=list)  # of the same chunks without drafts
    num_texts: int = 0
    num_equal: int = 0  # texts whose tokens, text and reason to end are those without drafts
    counts: Drafts = field(default_factory=Drafts)

    @property
    def gain(self) -> float:
        """Wall-clock of full depth without drafts ÷ that with drafts, whole calls."""
        return sum(self.plain_seconds) / sum(self.chunk_seconds)

    def warm_up(
        self, generator: Generator, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> None:
        """Generate a few tokens, from which nothing is learned."""
        self._generate(generator, prompts, [params] * len(prompts), DraftMemory())

    def run(
        self,
        generator: Generator,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        plain: Sequence[CompletionOutput],
        plain_seconds: float,
    ) -> None:
        """Generate a chunk; ``plain`` are its texts without drafts, made in ``plain_seconds``."""
        start = perf_counter()
        completions = self._generate(generator, prompts, params, self.memory)
        self.chunk_seconds.append(perf_counter() - start)
        self.plain_seconds.append(plain_seconds)
        self.num_texts += len(plain)
        self.num_equal += sum(
            _text(one) == _text(other) for one, other in zip(completions, plain, strict=True)
        )
        for one in completions:
            if (drafts := one.drafts) is not None:
                self.counts = Drafts(
                    self.counts.passes + drafts.passes,
                    self.counts.drafted + drafts.drafted,
                    self.counts.accepted + drafts.accepted,
                )

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
