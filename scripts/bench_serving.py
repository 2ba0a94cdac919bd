"""Times requests that run together in an Engine against static batches of them, on one bundle.

    python scripts/bench_serving.py opt-125m-int8 --requests 96 --slots 8

All requests wait from the start. Lengths are those of a service with a long tail (prompts
lognormal, mean about 128 tokens; texts median 64, up to 512) or short and alike (prompt 37, text
29 ± 9 tokens, as E2E's). Static batches take ``--slots`` requests at a time in order of arrival;
both ways write the same tokens, which is checked. Ways alternate; ratios are of their fastest runs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.load.lengths import WORKLOADS

from skipdec import Generator, SamplingParams, use_shared_thread_pool
from skipdec.engines.host.processor import available_cores, processor_name

TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class Requests:
    """Prompts of random tokens and how many tokens are to be written."""

    prompts: list[list[int]]
    params: list[SamplingParams]

    @classmethod
    def drawn(cls, workload: str, count: int, vocab_size: int) -> Requests:
        """``count`` requests, the same each time."""
        draw = random.Random(0)
        lengths = [WORKLOADS[workload](draw) for _ in range(count)]
        return cls(
            [[draw.randrange(4, vocab_size) for _ in range(one.prompt)] for one in lengths],
            [
                SamplingParams(temperature=0, max_tokens=one.text, ignore_eos=True)
                for one in lengths
            ],
        )

    @property
    def num_tokens(self) -> int:
        """Of all texts."""
        return sum(params.max_tokens or 0 for params in self.params)


def in_static_batches(
    generator: Generator, requests: Requests, schedule: str, slots: int
) -> list[TokenIds]:
    """A call of ``generate`` for each ``slots`` requests, in order of arrival."""
    texts: list[TokenIds] = []
    for start in range(0, len(requests.prompts), slots):
        batch = slice(start, start + slots)
        outputs = generator.generate(
            requests.prompts[batch], requests.params[batch], schedule=schedule
        )
        texts += [output.outputs[0].token_ids for output in outputs]
    return texts


def in_an_engine(
    generator: Generator, requests: Requests, schedule: str, slots: int
) -> list[TokenIds]:
    """All requests wait from the start."""
    with generator.engine() as engine:
        numbers = [
            engine.add(prompt, params, schedule=schedule)
            for prompt, params in zip(requests.prompts, requests.params, strict=True)
        ]
        while engine.is_busy:
            engine.step()
        return [engine.take(number).outputs[0].token_ids for number in numbers]


def main() -> None:
    """Print a table of schedules and workloads."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--schedules", nargs="+", default=["full", "2x:horizon=64", "4x:horizon=64"]
    )
    parser.add_argument("--threads", type=int, default=available_cores())
    arguments = parser.parse_args()
    use_shared_thread_pool(arguments.threads)
    print(f"{arguments.bundle.name}, {arguments.slots} slots, {arguments.threads} threads of")
    print(f"{processor_name()}; tokens a second\n")
    print("| lengths | schedule | static batches | engine | faster |\n|---|---|---|---|---|")
    with Generator.open(arguments.bundle, max_batch_size=arguments.slots) as generator:
        for workload in WORKLOADS:
            requests = Requests.drawn(workload, arguments.requests, generator.model.vocab_size)
            for schedule in arguments.schedules:
                static, running = best_times(
                    generator, requests, schedule, arguments.slots, arguments.rounds
                )
                rates = [requests.num_tokens / seconds for seconds in (static, running)]
                print(
                    f"| {workload} | {schedule} | {rates[0]:.0f} | {rates[1]:.0f} "
                    f"| {static / running:.2f}x |",
                    flush=True,
                )


def best_times(
    generator: Generator, requests: Requests, schedule: str, slots: int, rounds: int
) -> Sequence[float]:
    """Seconds of the fastest of ``rounds`` runs of each way, in turn; refuses unequal texts."""
    ways = (in_static_batches, in_an_engine)
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        texts = []
        for place, way in enumerate(ways):
            start = perf_counter()
            texts.append(way(generator, requests, schedule, slots))
            best[place] = min(best[place], perf_counter() - start)
        assert texts[0] == texts[1], "the two ways wrote different tokens"
    return best


if __name__ == "__main__":
    main()
