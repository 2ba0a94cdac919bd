"""Check that random requests in a running batch generate the same text as alone.

    python scripts/attack/arrivals.py --count 1000
    python scripts/attack/arrivals.py --count 1000 --device rehearsal
    python scripts/attack/arrivals.py --count 1000 --draft own+ends:2 --draft lookup,adapt=no
    python scripts/attack/arrivals.py --count 1000 --draft own,adapt=no --runtime native
    python scripts/attack/arrivals.py --count 1000 --family llama

Prompts, lengths, schedules, completions, seeds, arrivals and cancellations are random. Caches start
full of NaN (6.3 on a device), and memory is short, so that rows wait for it. Products are int8, so
texts must not depend on the batch at all. With --draft, requests come in batches, each of which
uses one of the given drafts; a third of the requests switch drafts off. Half of the proposals are
replaced by the text that the request generates alone, with some tokens wrong, so that many drafts
hold. With --runtime native, libskipdec runs the requests; see scripts/libskipdec/arrivals.py.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import CONFIG, FAMILIES, tiny_bundle

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from libskipdec.arrivals import NativeEngine, compare, draw_lines, find_program

from skipdec import EngineStats, Generator, RunningBatch, SamplingParams
from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.memory import DeviceBuffer, HostMemory
from skipdec.runtime.drafting.acceptance import UNKNOWN, Guesses
from skipdec.runtime.scheduling.drafters import (
    Drafter,
    LookupDrafter,
    OwnDrafter,
    RowDrafts,
    room_of,
)
from skipdec.runtime.scheduling.layer_drafter import GoesOn, LayerDrafter
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.tokens.outputs import RequestOutput

_LAYERS = int(str(CONFIG["num_hidden_layers"]))
_SLOTS = 6
_BATCH = 50  # requests that share a draft
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
    draft: str | None

    @property
    def key(self) -> tuple[tuple[int, ...], int | None]:
        """Return a key that identifies the request's rows."""
        return tuple(self.prompt), self.params.seed

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
        schedule, pause = chance.choice(_SCHEDULES), chance.choice((0, 0, 1, 6))
        return cls(prompt, params, schedule, pause, patience, chance.choice((None, None, "off")))


_Texts = dict[tuple[tuple[int, ...], int | None], RequestOutput]
"""The output of each request alone, by its key."""


def _make_half_right(texts: _Texts, chance: random.Random) -> None:
    """Make drafters replace half of their proposals by the row's own text, with mistakes."""

    def right(row: Row, most: int) -> Guesses:
        """Return the row's next tokens, each of which is wrong with a probability of 0.2."""
        alone = texts[row.request.prompt_token_ids, row.request.params.seed]
        tokens = alone.outputs[row.output_index].token_ids[len(row.token_ids) :][
            : min(most, room_of(row))
        ]
        guessed = [token if chance.random() < 0.8 else 7 for token in tokens]
        return Guesses(guessed, (UNKNOWN,) * len(guessed))

    def half_right(kind: type[Drafter]) -> Callable[..., list[Guesses]]:
        propose = kind.propose

        def proposed(
            self: Drafter, rows: Sequence[RowDrafts], most: int, *goes_on: GoesOn
        ) -> list[Guesses]:
            return [
                guesses if chance.random() < 0.5 else right(one.row, most)
                for one, guesses in zip(rows, propose(self, rows, most, *goes_on), strict=True)
            ]

        return proposed

    for kind in (OwnDrafter, LookupDrafter, LayerDrafter):
        kind.propose = half_right(kind)  # type: ignore[method-assign]


class _PoisonedMemory(HostMemory):
    """Fills new memory with NaN."""

    def allocate(self, nbytes: int) -> np.ndarray:
        buffer = super().allocate(nbytes)
        buffer.fill(0xFF)
        return buffer


class _PoisonedDeviceMemory(DeviceMemory):
    """Fills a device's new cache memory with 6.3 in float16, because attention would spread NaN."""

    def allocate(self, nbytes: int) -> DeviceBuffer:
        buffer = super().allocate(nbytes)
        self.device.fill(buffer.address, nbytes, 0x46)
        return buffer


def main() -> int:
    """Print the number of texts that differ from those generated alone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft", action="append", default=[], help="repeat for several")
    parser.add_argument("--device", choices=("cpu", "rehearsal", "cuda"), default="cpu")
    parser.add_argument("--runtime", choices=("python", "native"), default="python")
    parser.add_argument("--family", choices=FAMILIES, default="opt")
    arguments = parser.parse_args()
    if arguments.runtime == "native":
        return _attack_native(arguments)
    logging.disable(logging.WARNING)  # the model was not tuned to skip
    chance = random.Random(arguments.seed)
    arrivals = [Arrival.drawn(chance) for _ in range(arguments.count)]
    with tempfile.TemporaryDirectory(prefix="attack-") as temporary:
        bundle = _bundle(Path(temporary), arguments)
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
            texts = {one.key: _alone(generator, one) for one in arrivals}
            _make_half_right(texts, chance)
            drafts = arguments.draft or ["off"]
            size = min(arguments.count, _BATCH) if arguments.draft else arguments.count
            failures = drafted = accepted = 0
            for start in range(0, len(arrivals), size):
                batch = arrivals[start : start + size]
                draft = chance.choice(drafts)
                outputs, stats = _together(generator, batch, draft)
                drafted += stats.draft_tokens
                accepted += stats.accepted_draft_tokens
                failures += sum(
                    not _is_right(arrival, output, texts[arrival.key])
                    for arrival, output in zip(batch, outputs, strict=True)
                )
    batches = -(-len(arrivals) // size)
    named = "one running batch" if batches == 1 else f"{batches} running batches"
    print(f"{arguments.count} requests in {named}, {failures} failures")
    return _exit_code(failures, drafted, accepted, has_drafts=bool(arguments.draft))


def _bundle(directory: Path, arguments: argparse.Namespace) -> Path:
    return tiny_bundle(directory / "tiny", quantize="int8", family=arguments.family)


def _exit_code(failures: int, drafted: int, accepted: int, *, has_drafts: bool) -> int:
    if has_drafts:
        print(f"{accepted:,} of {drafted:,} drafted tokens were right")
        failures += accepted == 0  # otherwise nothing was tested
    return int(failures > 0)


def _attack_native(arguments: argparse.Namespace) -> int:
    program = find_program()
    if program is None:
        return 0
    chance = random.Random(arguments.seed)
    drafts = arguments.draft or ["off"]
    with tempfile.TemporaryDirectory(prefix="attack-") as temporary:
        bundle = _bundle(Path(temporary), arguments)
        found = [
            compare(
                NativeEngine(program, bundle),
                draw_lines(chance, min(_BATCH, arguments.count - start), _LAYERS, _SCHEDULES),
                chance,
                draft=chance.choice(drafts),
                max_batch_size=_SLOTS,
                kv_memory=_KV_MEMORY,
                max_prefill_tokens=16,
            )
            for start in range(0, arguments.count, _BATCH)
        ]
    failures = sum(one.failures for one in found)
    print(f"{arguments.count} requests to {len(found)} engines of libskipdec, {failures} failures")
    drafted, accepted = sum(one.drafted for one in found), sum(one.accepted for one in found)
    return _exit_code(failures, drafted, accepted, has_drafts=bool(arguments.draft))


def _alone(generator: Generator, arrival: Arrival) -> RequestOutput:
    return generator.generate([arrival.prompt], arrival.params, schedule=arrival.schedule)[0]


def _together(
    generator: Generator,
    arrivals: list[Arrival],
    draft: str,
) -> tuple[list[RequestOutput], EngineStats]:
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
        return [engine.take(number) for number in numbers], stats


def _cancel(engine: RunningBatch, impatient: dict[int, int]) -> None:
    for number in list(impatient):
        impatient[number] -= 1
        if impatient[number] < 0:
            del impatient[number]
            engine.abort(number)


def _is_right(arrival: Arrival, output: RequestOutput, alone: RequestOutput) -> bool:
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
