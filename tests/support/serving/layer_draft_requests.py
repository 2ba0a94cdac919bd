"""Run requests of any kind, depth and length, drafted by layers of their model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from compared_texts import greedy
from random_requests import run_all

from skipdec import EngineStats, Generator, SamplingParams
from skipdec.runtime.tokens.outputs import CompletionOutput

SAME = "constant:max=3"  # runs layers 0, 4, 5, like ends:3
SCHEDULES = ("full", SAME, "linear:max=5,min=2,horizon=12", "linear:max=5,min=4,horizon=30", SAME)
params = partial(greedy, max_tokens=30)
PENALTIES = {"presence_penalty": 0.6, "repetition_penalty": 1.2, "frequency_penalty": 0.2}
KINDS = (
    params(),
    params(temperature=1.1, seed=3, n=2),
    params(temperature=0.9, seed=4, top_k=7, max_tokens=2),
    params(max_tokens=1),
    params(temperature=0.9, seed=5, top_p=0.8, ignore_eos=False),
    params(temperature=1.3, seed=6, min_p=0.02, logprobs=None),
    params(temperature=1, seed=7, **PENALTIES),
    params(min_tokens=12, ignore_eos=False, stop_token_ids=[9, 17, 30, 41]),
    params(**PENALTIES),
)


def run(
    generator: Generator,
    draft: str | None,
    kinds: Sequence[SamplingParams] = KINDS,
    schedules: Sequence[str] = SCHEDULES,
    prompt_tokens: int = 4,
) -> tuple[list[CompletionOutput], EngineStats]:
    """Run a request of each kind, the i-th at the i-th schedule; every sixth without drafts.

    Prompts have ``prompt_tokens`` tokens or up to three more.
    """
    with generator.running_batch(draft=draft) as batch:
        numbers = [
            batch.add(
                [5 + index, 17, 90 - index, 4, *range(20, 16 + prompt_tokens + index % 4)],
                one,
                schedule=schedules[index % len(schedules)],
                draft="off" if draft and index % 6 == 5 else None,
            )
            for index, one in enumerate(kinds)
        ]
        run_all(batch)
        stats = batch.stats()
        assert stats.reserved_bytes == 0
        return [each for number in numbers for each in batch.take(number).outputs], stats
