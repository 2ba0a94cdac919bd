"""Check that random requests in a running batch generate the same text as alone.

    python scripts/attack/arrivals.py --count 1000
    python scripts/attack/arrivals.py --count 1000 --device rehearsal
    python scripts/attack/arrivals.py --count 1000 --draft own+lookup --draft own,adapt=no

Prompts, lengths, schedules, completions, seeds, arrivals and cancellations are random; caches start
full of NaN, and memory is short, so that rows wait for it. Products are int8, so texts must not
depend on the batch at all. With --draft the batch drafts tokens, except for requests that switch
drafts off, and texts alone are generated without drafts.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from harness import tiny_bundle

from skipdec import Generator, RunningBatch, SamplingParams
from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.memory import DeviceBuffer, HostMemory
from skipdec.runtime.tokens.outputs import RequestOutput

_SLOTS = 6
_KV_MEMORY = 400_000  # bytes: enough for any request, not for six long ones
_SCHEDULES = (
    "full",
    "2x:horizon=16",
    "2x:horizon=9,prompt=decay",
    "constant:max=3,placement=unified",
)


@dataclass(frozen=True)
class Arrival:
    """A request, the engine step at which it arrives, and the steps until it is cancelled."""

    prompt: list[int]
    params: SamplingParams
    schedule: str
    pause: int
    patience: int | None
    draft: Literal["off"] | None  # of this request alone

    @classmethod
    def drawn(cls, chance: random.Random) -> Arrival:
        """Draw a random one; about one in ten is cancelled."""
        n = chance.choice((1, 1, 1, 2, 3))
        params = SamplingParams(
            n=n,
            max_tokens=chance.choice((1, 2, 5, 9, 20)),
            temperature=0.8 if n > 1 else chance.choice((0.0, 0.8)),
            seed=chance.randrange(1 << 30),
            ignore_eos=chance.random() < 0.7,
        )
        prompt = [chance.randrange(4, 90) for _ in range(chance.randint(1, 30))]
        patience = chance.randint(0, 9) if chance.random() < 0.1 else None
        return cls(
            prompt,
            params,
            chance.choice(_SCHEDULES),
            chance.choice((0, 0, 1, 6)),
            patience,
            chance.choice((None, None, "off")),
        )


class _PoisonedMemory(HostMemory):
    """Fills new memory with NaN."""

    def allocate(self, nbytes: int) -> np.ndarray:
        buffer = super().allocate(nbytes)
        buffer.fill(0xFF)
        return buffer


class _PoisonedDeviceMemory(DeviceMemory):
    """Fills new memory of a device with NaN."""

    def allocate(self, nbytes: int) -> DeviceBuffer:
        buffer = super().allocate(nbytes)
        self.device.fill(buffer.address, nbytes, 0xFF)
        return buffer


def main() -> int:
    """Print the number of texts that differ from those generated alone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "rehearsal", "cuda"), default="cpu")
    parser.add_argument(
        "--draft", action="append", help="let the batch draft so; may be repeated, for a run each"
    )
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the model was not tuned to skip
    chance = random.Random(arguments.seed)
    arrivals = [Arrival.drawn(chance) for _ in range(arguments.count)]
    with tempfile.TemporaryDirectory(prefix="attack-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny", quantize="int8")
        threads = 1 if arguments.device == "cpu" else None
        with Generator.open(
            bundle,
            device=arguments.device,
            threads=threads,
            max_batch_size=_SLOTS,
            kv_memory=_KV_MEMORY,
        ) as generator:
            device = generator.device
            generator._engines.pool.memory = (
                _PoisonedMemory() if device is None else _PoisonedDeviceMemory(device)
            )
            failures = sum(
                _wrong_texts(generator, arrivals, draft) for draft in arguments.draft or ["off"]
            )
    return int(failures > 0)


def _wrong_texts(generator: Generator, arrivals: list[Arrival], draft: str) -> int:
    """Run all requests together, print what came of them, and return how many are wrong."""
    outputs = _together(generator, arrivals, draft)
    failures = sum(
        not _is_right(arrival, output, generator)
        for arrival, output in zip(arrivals, outputs, strict=True)
    )
    print(f"{len(arrivals)} requests in one running batch, draft {draft}, {failures} failures")
    return failures


def _together(generator: Generator, arrivals: list[Arrival], draft: str) -> list[RequestOutput]:
    numbers: list[int] = []
    impatient: dict[int, int] = {}  # request -> steps until it is cancelled
    coming = list(reversed(arrivals))
    pause = 0
    with generator.running_batch(max_prefill_tokens=16, draft=draft) as engine:
        while coming or engine.is_busy:
            while coming and pause <= 0:
                arrival = coming.pop()
                number = engine.add(
                    arrival.prompt,
                    arrival.params,
                    schedule=arrival.schedule,
                    draft=arrival.draft,
                )
                numbers.append(number)
                if arrival.patience is not None:
                    impatient[number] = arrival.patience
                pause = arrival.pause
            engine.step()
            pause -= 1
            _cancel(engine, impatient)
        stats = engine.stats()
        assert stats.submitted == stats.finished + stats.aborted, stats
        assert not stats.failed, stats
        assert not stats.reserved_bytes, stats
        assert stats.accepted_draft_tokens <= stats.draft_tokens, stats
        if stats.draft_tokens:
            print(f"{stats.draft_tokens} drafted tokens, {stats.accepted_draft_tokens} right")
        return [engine.take(number) for number in numbers]


def _cancel(engine: RunningBatch, impatient: dict[int, int]) -> None:
    for number in list(impatient):
        impatient[number] -= 1
        if impatient[number] < 0:
            del impatient[number]
            engine.abort(number)


def _is_right(arrival: Arrival, output: RequestOutput, generator: Generator) -> bool:
    alone = generator.generate([arrival.prompt], arrival.params, schedule=arrival.schedule)[0]
    for given, expected in zip(output.outputs, alone.outputs, strict=True):
        length = len(given.token_ids)
        is_whole = given.finish_reason == expected.finish_reason and length == len(
            expected.token_ids
        )
        if given.token_ids != expected.token_ids[:length] or not (
            is_whole or given.finish_reason == "abort"
        ):
            print(f"{arrival} generated {given.token_ids}; alone {expected.token_ids}")
            return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
