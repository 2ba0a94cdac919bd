"""Time decode steps of several bundles alternately, in one process with one thread pool.

A shared machine may be 20 % faster or slower a minute later, and a neighbour's burst lasts
milliseconds. Each round therefore runs one step of each variant, so that a disturbance hits all,
and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from skipdec import Generator, SamplingParams
from skipdec.runtime.measuring.prompts import random_prompts

_WARM_STEPS = 3


@dataclass(frozen=True)
class Variant:
    """A generator with ``rows`` prompts of random tokens.

    ``context`` is the number of positions a row attends to, averaged over the timed steps.
    """

    generator: Generator
    rows: int = 1
    context: int = 160
    schedule: str = "full"

    def steps(self, count: int) -> Iterator[float]:
        """Run the prompt and a few steps, then yield the seconds of ``count`` steps, one by one.

        These are complete steps as a caller sees them, including sampling and text.
        """
        params = SamplingParams(
            temperature=0.0, max_tokens=1 + _WARM_STEPS + count, ignore_eos=True
        )
        prompts = self._prompts(self._prompt_length(count))
        deltas = self.generator.stream(prompts, params, schedule=self.schedule)
        for _ in range(self.rows * (1 + _WARM_STEPS)):
            next(deltas)
        for _ in range(count):
            start = perf_counter()
            for _ in range(self.rows):
                next(deltas)
            yield perf_counter() - start

    def first_token(self, prompt_length: int) -> float:
        """Return the seconds of a call for one token per row."""
        prompts = self._prompts(prompt_length)
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        start = perf_counter()
        self.generator.generate(prompts, params, schedule=self.schedule)
        return perf_counter() - start

    def _prompt_length(self, count: int) -> int:
        return self.context - _WARM_STEPS - (count + 1) // 2

    def _prompts(self, length: int) -> list[list[int]]:
        vocab_size = self.generator.model.vocab_size
        return random_prompts(vocab_size, batch_size=self.rows, prompt_length=length, seed=0)


@dataclass(frozen=True)
class Paired:
    """Seconds of each variant's steps by round."""

    seconds: Mapping[str, tuple[float, ...]]

    def ratios(self) -> dict[str, float]:
        """Return each variant's time ÷ the first one's, the median of the rounds' ratios."""
        first = next(iter(self.seconds.values()))
        return {
            name: round(median(one / other for one, other in zip(times, first, strict=True)), 3)
            for name, times in self.seconds.items()
        }

    def timings(self) -> dict[str, dict[str, float]]:
        """Return p50, minimum and p95 of each variant in milliseconds, and the count."""
        return {name: summary(seconds) for name, seconds in self.seconds.items()}


def paired_steps(variants: Mapping[str, Variant], rounds: int) -> Paired:
    """Run ``rounds`` steps of each variant in turn."""
    running = {name: variant.steps(rounds) for name, variant in variants.items()}
    timed = [{name: next(steps) for name, steps in running.items()} for _ in range(rounds)]
    return Paired({name: tuple(times[name] for times in timed) for name in variants})


def paired_calls(calls: Mapping[str, Callable[[], float]], rounds: int) -> Paired:
    """Warm up each call once, then run all in turn ``rounds`` times; calls return seconds."""
    for call in calls.values():
        call()
    timed = [{name: call() for name, call in calls.items()} for _ in range(rounds)]
    return Paired({name: tuple(times[name] for times in timed) for name in calls})


def summary(seconds: tuple[float, ...]) -> dict[str, float]:
    """Return p50, minimum and p95 in milliseconds, and the count."""
    milliseconds = 1000 * np.array(seconds)  # [count]
    return {
        "p50": round(float(np.median(milliseconds)), 3),
        "minimum": round(float(milliseconds.min()), 3),
        "p95": round(float(np.percentile(milliseconds, 95)), 3),
        "count": len(seconds),
    }
