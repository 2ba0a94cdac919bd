"""Time decode steps of several bundles alternately, in one process with one thread pool.

A shared machine may be 20 % faster or slower a minute later, and a neighbour's burst lasts
milliseconds. Each round therefore runs one step of each variant, so that a disturbance hits all,
and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from skipdec import Generator, SamplingParams
from skipdec.runtime.measuring.bandwidth import BandwidthProbe
from skipdec.runtime.measuring.cost import CostModel
from skipdec.runtime.measuring.prompts import random_prompts
from skipdec.runtime.schedule.text import parse_schedule

_WARM_STEPS = 3
_STEPS_A_PROBE = 1


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

    def step_bytes(self, count: int) -> list[int]:
        """Return the bytes that each step of ``steps(count)`` reads: weights, scales, KV caches."""
        cost = CostModel(self.generator.bundle.manifest)
        schedule = parse_schedule(self.schedule, num_layers=self.generator.model.num_layers)
        prompt = self._prompt_length(count)
        return [
            cost.step(schedule.plan(index), [prompt + index + 1] * self.rows).total
            for index in range(_WARM_STEPS, _WARM_STEPS + count)
        ]

    def _prompt_length(self, count: int) -> int:
        return self.context - _WARM_STEPS - (count + 1) // 2

    def _prompts(self, length: int) -> list[list[int]]:
        vocab_size = self.generator.model.vocab_size
        return random_prompts(vocab_size, batch_size=self.rows, prompt_length=length, seed=0)


@dataclass(frozen=True)
class Paired:
    """Seconds of each variant's steps by round, with bandwidth in bytes per second near each."""

    seconds: Mapping[str, tuple[float, ...]]
    bandwidth: tuple[float, ...] = ()

    def ratio(self, slower: str, faster: str) -> float:
        """Return the median of the rounds' ratios."""
        pairs = zip(self.seconds[slower], self.seconds[faster], strict=True)
        return median(one / other for one, other in pairs)

    def words(self, slower: str, faster: str) -> str:
        """Describe the times behind a ratio, and that of the fastest steps."""
        one, other = (self.timings()[name] for name in (slower, faster))
        best = one["minimum"] / other["minimum"]
        return f"{one['p50']:.1f} ÷ {other['p50']:.1f} ms; fastest {best:.2f}"

    def floor_fraction(self, name: str, step_bytes: list[int]) -> float:
        """Return the median of the steps' bytes per second over the bandwidth measured next to
        them.
        """
        rounds = zip(self.seconds[name], step_bytes, self.bandwidth, strict=True)
        return median(nbytes / seconds / bandwidth for seconds, nbytes, bandwidth in rounds)

    def best_floor_fraction(self, name: str, step_bytes: list[int]) -> float:
        """Return the fastest step's bytes per second over the maximum bandwidth."""
        rounds = zip(self.seconds[name], step_bytes, strict=True)
        return max(nbytes / seconds for seconds, nbytes in rounds) / max(self.bandwidth)

    def timings(self) -> dict[str, dict[str, float]]:
        """Return p50, minimum and p95 of each variant in milliseconds, and the count."""
        return {name: summary(seconds) for name, seconds in self.seconds.items()}


def paired_steps(
    variants: Mapping[str, Variant], rounds: int, threads: int | None = None
) -> Paired:
    """Run ``rounds`` steps of each variant in turn; ``threads`` also measures bandwidth."""
    with ExitStack() as stack:
        probe = None
        if threads is not None:
            probe = stack.enter_context(BandwidthProbe(threads, settle_seconds=0.1))
        running = {name: variant.steps(rounds) for name, variant in variants.items()}
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        bandwidth: list[float] = []
        for number in range(rounds):
            if probe is not None and number % _STEPS_A_PROBE == 0:
                probe.measure()
            for name, steps in running.items():
                seconds[name].append(next(steps))
            if probe is not None:
                bandwidth.append(probe.samples[-1])
    return Paired({name: tuple(times) for name, times in seconds.items()}, tuple(bandwidth))


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
