"""Measure a running batch of one bundle on a device against static batches; check its texts.

    python scripts/benchmarks/gpu/running_batch.py opt-1.3b-fp16 cuda 8 128 64 full 2x 4x

prints JSON for 8 rows at once, prompts of up to 128 tokens and texts of up to 64. Four requests per
row wait from the start, with the schedules in turn; the second run is timed, in one engine and in
static batches. Each request of the first run is also run alone: in float16, products round
differently with other row counts, so some texts diverge; errors, or few equal texts, indicate a
fault.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from skipdec import Generator, SamplingParams
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.tokens.outputs import CompletionOutput

_REQUESTS_A_ROW = 4


@dataclass(frozen=True)
class Wanted:
    """A request with one completion."""

    prompt: list[int]
    params: SamplingParams
    schedule: str


def draw(
    count: int, prompt_length: int, num_tokens: int, schedules: Sequence[str], vocab_size: int
) -> list[Wanted]:
    """Draw prompts and texts of half to full length, the same each time."""
    chance = random.Random(0)
    return [
        Wanted(
            [
                chance.randrange(4, vocab_size)
                for _ in range(chance.randint(-(-prompt_length // 2), prompt_length))
            ],
            SamplingParams(
                temperature=0,
                max_tokens=chance.randint(-(-num_tokens // 2), num_tokens),
                ignore_eos=True,
            ),
            schedules[index % len(schedules)],
        )
        for index in range(count)
    ]


def together(engine: RunningBatch, wanted: list[Wanted]) -> list[CompletionOutput]:
    """Generate the texts of requests that all wait from the start."""
    numbers = [engine.add(one.prompt, one.params, schedule=one.schedule) for one in wanted]
    while engine.is_busy:
        engine.step()
    return [engine.take(number).outputs[0] for number in numbers]


def in_static_batches(generator: Generator, wanted: list[Wanted], rows: int) -> None:
    """Run requests of one schedule in batches of up to ``rows``, one after another."""
    for schedule in dict.fromkeys(one.schedule for one in wanted):
        alike = [one for one in wanted if one.schedule == schedule]
        for start in range(0, len(alike), rows):
            batch = alike[start : start + rows]
            params = [one.params for one in batch]
            generator.generate([one.prompt for one in batch], params, schedule=schedule)


def main() -> None:
    """Print the figures of the bundle in the first argument."""
    path, device = Path(sys.argv[1]), sys.argv[2]
    rows, prompt_length, num_tokens = map(int, sys.argv[3:6])
    with Generator.open(path, device=device, max_batch_size=rows) as generator:
        count = _REQUESTS_A_ROW * rows
        vocab_size = generator.model.vocab_size
        wanted = draw(count, prompt_length, num_tokens, sys.argv[6:], vocab_size)
        with generator.running_batch(max_model_len=prompt_length + num_tokens) as engine:
            together(engine, wanted)
            before, start = engine.stats(), perf_counter()
            outputs = together(engine, wanted)
            seconds, after = perf_counter() - start, engine.stats()
        in_static_batches(generator, wanted, rows)
        start = perf_counter()
        in_static_batches(generator, wanted, rows)
        static_seconds = perf_counter() - start
        alone = [
            generator.generate([one.prompt], one.params, schedule=one.schedule)[0].outputs[0]
            for one in wanted[:rows]
        ]
    tokens = sum(len(output.token_ids) for output in outputs)
    steps = after.steps - before.steps
    figures = {
        "rows": rows,
        "requests": count,
        "failed": sum(output.finish_reason == "error" for output in outputs),
        "compared": len(alone),
        "equal": sum(
            one.token_ids == other.token_ids
            for one, other in zip(outputs[:rows], alone, strict=True)
        ),
        "tokens_per_second": tokens / seconds,
        "static_tokens_per_second": tokens / static_seconds,
        "step_milliseconds": (after.decode_seconds - before.decode_seconds) / steps * 1e3,
        "mixing_loss": after.mixing_loss,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
