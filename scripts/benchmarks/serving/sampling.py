"""Measure the cost of choosing tokens: the part of a running batch's step outside the engines.

    python scripts/benchmarks/serving/sampling.py opt-125m-int8 --rows 1 8 32

Sampling is everything between a step's logits and its deltas: the draw, stop strings, detokenising.
A bundle of random weights is the worst case: its tokens are about equally likely, so that top_p
keeps most of the vocabulary. Prints Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from skipdec import Generator, SamplingParams, use_shared_thread_pool
from skipdec.engines.host.processor import available_cores, processor_name

_TOKENS = 64
_WAYS = {
    "greedy": SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True),
    "temperature 0.8": SamplingParams(temperature=0.8, max_tokens=_TOKENS, seed=1, ignore_eos=True),
    "temperature 0.8, top_p 0.95": SamplingParams(
        temperature=0.8, top_p=0.95, max_tokens=_TOKENS, seed=1, ignore_eos=True
    ),
    "temperature 0.8, top_k 50": SamplingParams(
        temperature=0.8, top_k=50, max_tokens=_TOKENS, seed=1, ignore_eos=True
    ),
}


def main() -> None:
    """Print a table of sampling methods and rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--schedule", default="full")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    arguments = parser.parse_args()
    use_shared_thread_pool(arguments.threads)
    print(f"{arguments.bundle.name}, {arguments.threads} threads of {processor_name()}\n")
    rows = arguments.rows
    print(f"| sampling: ms of a step (share) | {' | '.join(f'{n} rows' for n in rows)} |")
    print(f"{'|---' * (1 + len(rows))}|")
    with Generator.open(arguments.bundle, max_batch_size=max(rows)) as generator:
        for name, params in _WAYS.items():
            cells = []
            for count in rows:
                found = [
                    sampling(generator, params, count, arguments.schedule)
                    for _ in range(arguments.rounds)
                ]
                seconds, share = min(found)
                cells.append(f"{1000 * seconds:.2f} ({share:.1%})")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def sampling(
    generator: Generator, params: SamplingParams, rows: int, schedule: str
) -> tuple[float, float]:
    """Return seconds per step, and their share of the step."""
    with generator.running_batch(prefix_cache=False) as engine:
        for row in range(rows):
            engine.add([5 + row] * 16, params, schedule=schedule)
        while engine.is_busy and engine.stats().waiting:
            engine.step()
        begun = engine.stats()
        while engine.is_busy:
            engine.step()
        ended = engine.stats()
    steps = ended.steps - begun.steps
    chosen = ended.sampling_seconds - begun.sampling_seconds
    whole = chosen + ended.decode_seconds - begun.decode_seconds
    return chosen / steps, chosen / whole


if __name__ == "__main__":
    main()
