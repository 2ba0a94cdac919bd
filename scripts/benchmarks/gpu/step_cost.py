"""Measure what a step costs beside its engines, on a device.

    python scripts/benchmarks/gpu/step_cost.py opt-1.3b-fp16 cuda 128 64 1,8 full 5x

prints for each batch size and schedule the median milliseconds of a step, of its engines (launching
the step's graph and waiting for it, transfers included), and of the rest: filling inputs, choosing
tokens, scheduling. Prompts have 128 tokens, texts 64. The first call captures the graphs; the
second one is timed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from skipdec import Generator
from skipdec.runtime.measuring.bench import bundle_prompts, timed_run
from skipdec.runtime.stitching.device.steps import StepGraphs, StepPart


@contextmanager
def timed_engines() -> Iterator[list[float]]:
    """Yield a list that gets the seconds of each run of a step's engines."""
    seconds: list[float] = []
    run = StepGraphs.run

    def timed(self: StepGraphs, parts: Sequence[StepPart]) -> None:
        start = perf_counter()
        run(self, parts)
        seconds.append(perf_counter() - start)

    StepGraphs.run = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        StepGraphs.run = run  # type: ignore[method-assign]


def measure(
    generator: Generator, rows: int, schedule: str, prompt_length: int, num_tokens: int
) -> dict[str, Any]:
    """Return the medians of one batch size and schedule, in milliseconds."""
    prompts = bundle_prompts(generator, batch_size=rows, prompt_length=prompt_length, seed=0)
    exits = generator.resolve_schedule(schedule, max_tokens=num_tokens)
    timed_run(generator, prompts, exits, num_tokens)
    with timed_engines() as seconds:
        steps = timed_run(generator, prompts, exits, num_tokens).step_seconds
    engines = seconds[-len(steps) :]
    beside = median(step - engine for step, engine in zip(steps, engines, strict=True))
    return {
        "batch_size": rows,
        "schedule": schedule,
        "step_milliseconds": 1e3 * median(steps),
        "engine_milliseconds": 1e3 * median(engines),
        "beside_milliseconds": 1e3 * beside,
    }


def main() -> None:
    """Print the costs of the bundle in the first argument."""
    path, device, prompt_length, num_tokens, sizes, *schedules = sys.argv[1:]
    rows = [int(size) for size in sizes.split(",")]
    with Generator.open(Path(path), device=device, max_batch_size=max(rows)) as generator:
        costs = [
            measure(generator, batch_size, schedule, int(prompt_length), int(num_tokens))
            for batch_size in rows
            for schedule in schedules
        ]
    print(json.dumps({"costs": costs}))


if __name__ == "__main__":
    main()
