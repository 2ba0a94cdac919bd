"""Time decode steps of several bundles alternately, in one process with one thread pool.

A shared machine may be 20 % faster or slower a minute later, and a neighbour's burst lasts
milliseconds. Each round therefore runs one step of each variant, so that a disturbance hits all of
them, and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from skipdec import Generator, SamplingParams
from skipdec.runtime.measuring.meter import Turns
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

    def steps(self, count: int) -> Iterator[float]:
        """Run the prompt and a few steps, then yield the seconds of ``count`` steps, one by one.

        These are complete steps as a caller sees them, including sampling and text.
        """
        params = SamplingParams(
            temperature=0.0, max_tokens=1 + _WARM_STEPS + count, ignore_eos=True
        )
        prompts = self._prompts(self._prompt_length(count))
        deltas = self.generator.stream(prompts, params, schedule="full")
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
        self.generator.generate(prompts, params, schedule="full")
        return perf_counter() - start

    def _prompt_length(self, count: int) -> int:
        return self.context - _WARM_STEPS - (count + 1) // 2

    def _prompts(self, length: int) -> list[list[int]]:
        vocab_size = self.generator.model.vocab_size
        return random_prompts(vocab_size, batch_size=self.rows, prompt_length=length, seed=0)


def paired_steps(variants: Mapping[str, Variant], rounds: int) -> dict[str, Any]:
    """Run ``rounds`` steps of each variant in turn; return timings and ratios to the first one."""
    running = {name: variant.steps(rounds) for name, variant in variants.items()}
    return _figures([{name: next(steps) for name, steps in running.items()} for _ in range(rounds)])


def paired_calls(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Warm up each call once, then run all in turn ``rounds`` times; calls return seconds."""
    for call in calls.values():
        call()
    return _figures([{name: call() for name, call in calls.items()} for _ in range(rounds)])


def _figures(timed: list[dict[str, float]]) -> dict[str, Any]:
    """Return the milliseconds of each variant, and the meter's ratio of it to the first one."""
    turns, first = Turns(timed, items=1), next(iter(timed[0]))
    return {
        "timings": {name: summary([turn[name] for turn in timed]) for name in timed[0]},
        "ratios": {name: round(turns.ratio(first, name).value, 3) for name in timed[0]},
    }


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, minimum and p95 in milliseconds, and the count."""
    milliseconds = 1000 * np.array(seconds)  # [count]
    return {
        "p50": round(float(np.median(milliseconds)), 3),
        "minimum": round(float(milliseconds.min()), 3),
        "p95": round(float(np.percentile(milliseconds, 95)), 3),
        "count": len(seconds),
    }
