"""Predict the time of a running batch: the real scheduler over a cost model of calls.

A step of n rows whose plans have b₁ … bₙ layers costs e₀ + e₁·n + w·max(b) + k·Σb: the embedding
and head, reading the weights of each layer that any row runs, and each row's work per layer. A call
for prompts costs p₀ + p₁ · (tokens, padding included).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter

import numpy as np

from benchmarks.serving.ways import Requests
from skipdec import ExitSchedule, Generator, SamplingParams
from skipdec.runtime.scheduling.loaded_bundle import MAX_PREFILL_TOKENS
from skipdec.runtime.scheduling.scheduler import Chunk, Decode, Prefill, Scheduler, parse_admission

_STEPS = 48  # timed at each depth and number of rows
_POSITIONS = 96  # of the preceding prompts: the middle of a request


@dataclass(frozen=True)
class Costs:
    """Parameters in seconds; see above."""

    ends: float
    ends_row: float
    weights: float
    row: float
    prompt: float
    token: float

    def step(self, depths: Sequence[int]) -> float:
        """Return the seconds of a decode step."""
        rows = len(depths)
        return (
            self.ends + self.ends_row * rows + self.weights * max(depths) + self.row * sum(depths)
        )

    def prefill(self, tokens: int) -> float:
        """Return the seconds of a call for prompts."""
        return self.prompt + self.token * tokens


def measured_costs(generator: Generator, slots: int) -> Costs:
    """Fit the parameters by least squares to steps at some depths and rows, and to prompts."""
    layers = generator.model.num_layers
    depths = sorted({max(2, layers // 4), layers // 2, layers})
    cells = list(product(depths, sorted({1, slots // 2, slots})))
    steps = [_step_seconds(generator, depth, rows) for depth, rows in cells]
    terms = np.array([[1, rows, depth, depth * rows] for depth, rows in cells], float)
    scale = 1 / np.array(steps)  # relative errors count
    ends, ends_row, weights, row = np.linalg.lstsq(
        terms * scale[:, None], np.ones(len(steps)), rcond=None
    )[0]
    lengths = np.array([16, 64, 128, 256, 512])
    prompts = np.array([_prompt_seconds(generator, int(length)) for length in lengths])
    token, prompt = np.polyfit(lengths, prompts, 1, w=1 / prompts)
    return Costs(*map(float, (ends, ends_row, weights, row, prompt, token)))


@dataclass(frozen=True)
class _Waiting:
    """A request with one completion, as the scheduler reads it."""

    number: int
    prompt_length: int
    num_rows: int = 1
    client: str = ""


def predicted_seconds(
    costs: Costs, requests: Requests, schedule: ExitSchedule, slots: int
) -> float:
    """Predict ``requests`` that all wait from the start, in a running batch of ``slots`` rows."""
    scheduler = Scheduler[_Waiting](
        slots, MAX_PREFILL_TOKENS, parse_admission("fcfs"), lambda requests: True
    )
    for number, request in enumerate(requests.requests):
        scheduler.add(_Waiting(number, len(request.prompt)))
    written: dict[int, int] = {}  # for requests in flight
    now = 0.0
    while scheduler.is_busy:
        match scheduler.next_action(now):
            case Prefill(numbers):
                longest = max(len(requests.requests[number].prompt) for number in numbers)
                now += costs.prefill(longest * len(numbers))
                written |= dict.fromkeys(numbers, 1)
            case Decode():
                now += costs.step([len(schedule.plan(count - 1)) for count in written.values()])
                written = {number: count + 1 for number, count in written.items()}
            case Chunk() | _:
                raise AssertionError("no prompt is this long, and the scheduler never waits")
        for number, count in list(written.items()):
            if count >= requests.requests[number].max_tokens:
                scheduler.row_ended(number)
                del written[number]
    return now


def _step_seconds(generator: Generator, depth: int, rows: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=_STEPS, ignore_eos=True)
    schedule = f"constant:max={depth}"
    with generator.running_batch(prefix_cache=False) as engine:
        for row in range(rows):
            engine.add([5 + row] * _POSITIONS, params, schedule=schedule)
        while engine.is_busy and engine.stats().waiting:
            engine.step()
        seconds = []
        while engine.is_busy:
            start = perf_counter()
            engine.step()
            seconds.append(perf_counter() - start)
    return float(np.median(seconds[1:]))


def _prompt_seconds(generator: Generator, length: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=1)
    seconds = []
    for first in range(5, 10):
        start = perf_counter()
        generator.generate([[first] * length], params, schedule="full")
        seconds.append(perf_counter() - start)
    return float(np.median(seconds))
