"""Measure what a step costs beside its engines, on a device.

    python scripts/benchmarks/gpu/step_cost.py opt-1.3b-fp16 cuda 128 64 1,8 full 5x

prints for each batch size and schedule the median milliseconds of a step, of its engines alone (the
last step's graph, launched again and again), and of the rest. Prompts have 128 tokens, texts 64.
The first call captures the graphs; the second one is timed.
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
from skipdec.engines.backends.device import Device
from skipdec.runtime.measuring.bench import timed_run
from skipdec.runtime.measuring.prompts import bundle_prompts
from skipdec.runtime.stitching.device.steps import StepGraphs, StepPart

_LAUNCHES = 50


@contextmanager
def seen_steps() -> Iterator[list[tuple[StepGraphs, Sequence[StepPart]]]]:
    """Yield a list that gets what each step enqueues."""
    seen: list[tuple[StepGraphs, Sequence[StepPart]]] = []
    enqueue = StepGraphs.enqueue

    def enqueue_seen(self: StepGraphs, parts: Sequence[StepPart]) -> None:
        seen.append((self, parts))
        enqueue(self, parts)

    StepGraphs.enqueue = enqueue_seen  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        StepGraphs.enqueue = enqueue  # type: ignore[method-assign]


def engine_seconds(device: Device, graphs: StepGraphs, parts: Sequence[StepPart]) -> float:
    """Return the seconds of one run of a step's engines, of many in succession."""
    graphs.enqueue(parts)
    device.synchronize()
    start = perf_counter()
    for _ in range(_LAUNCHES):
        graphs.enqueue(parts)
    device.synchronize()
    return (perf_counter() - start) / _LAUNCHES


def measure(
    generator: Generator, rows: int, schedule: str, prompt_length: int, num_tokens: int
) -> dict[str, Any]:
    """Return the medians of one batch size and schedule, in milliseconds."""
    prompts = bundle_prompts(generator, batch_size=rows, prompt_length=prompt_length, seed=0)
    exits = generator.resolve_schedule(schedule, max_tokens=num_tokens)
    timed_run(generator, prompts, exits, num_tokens)
    with seen_steps() as seen:
        steps = timed_run(generator, prompts, exits, num_tokens).step_seconds
    assert generator.device is not None
    engines = engine_seconds(generator.device, *seen[-1])
    step = median(steps[len(steps) // 2 :])  # of later steps, whose depth is that of the last
    return {
        "batch_size": rows,
        "schedule": schedule,
        "step_milliseconds": 1e3 * step,
        "engine_milliseconds": 1e3 * engines,
        "beside_milliseconds": 1e3 * (step - engines),
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
