"""Run the same requests in static batches, in a running batch, and in a peer's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from benchmarks.load.lengths import WORKLOADS
from benchmarks.load.requests import LoadRequest, drawn
from skipdec import Generator, SamplingParams

Texts = list[tuple[int, ...]]
Way = Callable[[], Texts]


@dataclass(frozen=True)
class Requests:
    """Prompts of random tokens, and the numbers of tokens to generate; all wait from the start."""

    requests: tuple[LoadRequest, ...]

    @classmethod
    def drawn(cls, workload: str, count: int, vocab_size: int) -> Requests:
        """Draw ``count`` requests of one of `WORKLOADS`, the same each time."""
        endless = drawn(WORKLOADS[workload], seed=0, vocab_size=vocab_size)
        return cls(tuple(islice(endless, count)))

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of the prompts."""
        return [list(map(int, request.prompt)) for request in self.requests]

    @property
    def params(self) -> list[SamplingParams]:
        """Greedy parameters that generate every token."""
        return [
            SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
            for request in self.requests
        ]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all texts."""
        return sum(request.max_tokens for request in self.requests)


def static_batches(generator: Generator, requests: Requests, schedule: str, slots: int) -> Texts:
    """Call ``generate`` for each ``slots`` requests, in order of arrival."""
    texts: Texts = []
    for start in range(0, len(requests.requests), slots):
        batch = slice(start, start + slots)
        outputs = generator.generate(
            requests.prompts[batch], requests.params[batch], schedule=schedule
        )
        texts += [output.outputs[0].token_ids for output in outputs]
    return texts


def running_batch(generator: Generator, requests: Requests, schedule: str) -> Texts:
    """Run all requests in one running batch, waiting from the start."""
    with generator.running_batch() as engine:
        numbers = [
            engine.add(prompt, params, schedule=schedule)
            for prompt, params in zip(requests.prompts, requests.params, strict=True)
        ]
        while engine.is_busy:
            engine.step()
        return [engine.take(number).outputs[0].token_ids for number in numbers]


def best_seconds(ways: Sequence[Way], rounds: int) -> list[float]:
    """Return seconds of the fastest of ``rounds`` alternating runs each; refuse unequal texts."""
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        texts = []
        for place, way in enumerate(ways):
            start = perf_counter()
            texts.append(way())
            best[place] = min(best[place], perf_counter() - start)
        assert all(each == texts[0] for each in texts), "two ways generated different tokens"
    return best
