"""Feed known texts to a slot stitcher in passes of one or several tokens per row."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipdec.engines.backends.session import open_backend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import Array
from skipdec.runtime.drafting.config import MAX_DRAFT_TOKENS
from skipdec.runtime.kv.buffers import BufferPool, KVLayout
from skipdec.runtime.kv.limits import Limits
from skipdec.runtime.kv.plans import PromptRow, SlotMemory
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.plan import LayerPlan
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.stitching.loaded import load_stitcher, make_slots
from skipdec.runtime.stitching.protocol import DraftRow, StepRow
from skipdec.runtime.stitching.slot_stitcher import SlotStitcher
from skipdec.runtime.tokens.logits import CandidateLogits, HostLogits, StepLogits

Operation = dict[str, Any]
Bits = dict[tuple[int, int], str]
"""The logits behind a row's position, in hexadecimal."""

KV_BYTES = 1 << 24
SCHEDULES = ("full", "linear:max=5,min=2,horizon=20", "constant:max=3", "2x:horizon=9,prompt=decay")
PLANS = tuple(  # of draft steps
    LayerPlan(layers) for layers in ((0,), (0, 5), (0, 4, 5), (0, 1, 2), (0, 3, 4, 5), (2, 5))
)


@dataclass(frozen=True)
class KnownText:
    """The tokens of one row: a prompt and its continuation, at a schedule."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    schedule: str

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.continuation


def _draw_texts(seed: int, count: int) -> list[KnownText]:
    """Draw ``count`` texts that continue for about 24 tokens, with SCHEDULES in turn."""
    rng = random.Random(seed)
    return [
        KnownText(
            _draw(rng, rng.randint(1, 9)),
            _draw(rng, rng.randint(20, 28)),
            SCHEDULES[i % len(SCHEDULES)],
        )
        for i in range(count)
    ]


def _draw(rng: random.Random, size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(4, 90) for _ in range(size))


TEXTS = _draw_texts(3, 8)


def alone(texts: Sequence[KnownText]) -> list[Operation]:
    """Feed one text after the other, a token per pass."""
    operations: list[Operation] = []
    for row, text in enumerate(texts):
        operations.append(_begin(row, text))
        operations += [
            {"step": [_fed(row, text, position, [text.tokens[position]])]}
            for position in range(len(text.prompt), len(text.tokens) - 1)
        ]
        operations.append({"release": row})
    return operations


def together(texts: Sequence[KnownText], width: int, seed: int) -> list[Operation]:
    """Feed up to ``width`` tokens of some rows and one of others in each pass.

    Texts begin one after the other while others run. Some passes end in tokens that are not the
    text's, or are rolled back, and the row's own tokens are fed again.
    """
    rng = random.Random(seed)
    waiting, operations = list(enumerate(texts)), list[Operation]()
    position: dict[int, int] = {}  # position of each running row's next token
    while waiting or position:
        while waiting and len(position) < 4 and rng.random() < 0.6:
            row, text = waiting.pop(0)
            operations.append(_begin(row, text))
            position[row] = len(text.prompt)
        if not position:
            continue
        fed, lengths = [], dict[int, int]()
        for row, start in position.items():
            text = texts[row]
            count = min(rng.choice([1, width, width]), len(text.tokens) - 1 - start)
            tokens = list(text.tokens[start : start + count])
            kept = rng.randint(1, count) if rng.random() < 0.4 else count
            tokens[kept:] = [rng.randrange(4, 90) for _ in tokens[kept:]]
            fed.append(_fed(row, text, start, tokens))
            lengths[row] = start + (0 if rng.random() < 0.2 else kept)
        rng.shuffle(fed)
        operations.append({"step": fed})
        for one in fed:
            row, length = one["row"], lengths[one["row"]]
            if length < one["position"] + len(one["tokens"]):
                operations.append({"truncate": [row, length]})
            position[row] = length
            if length == len(texts[row].tokens) - 1:
                operations.append({"release": row})
                del position[row]
    return operations


def beside_the_last_position(capacity: int) -> tuple[list[KnownText], list[Operation]]:
    """Return three texts, of which the first fills the model's positions, and their passes.

    The first text's last tokens are fed one per pass beside rows that feed eight, so the padding of
    its row reaches beyond ``capacity``.
    """
    rng, counts = random.Random(0), (1, 8, 8)
    texts = [
        KnownText(_draw(rng, size), _draw(rng, 3 * count + 1), "full")
        for size, count in zip((capacity - 4, 5, 5), counts, strict=True)
    ]
    operations = [_begin(row, text) for row, text in enumerate(texts)]
    for index in range(3):
        starts = [
            len(text.prompt) + index * count for text, count in zip(texts, counts, strict=True)
        ]
        operations.append(
            {
                "step": [
                    _fed(row, text, start, text.tokens[start : start + counts[row]])
                    for row, (text, start) in enumerate(zip(texts, starts, strict=True))
                ]
            }
        )
    return texts, operations + [{"release": row} for row in range(len(texts))]


def known_logits(
    texts: Sequence[KnownText], operations: Sequence[Operation], logits: Sequence[Sequence[str]]
) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield row and position of each fed token with its logits, if they are its text's.

    ``logits``: for each step, those of all tokens that it fed. Tokens that are not the text's, and
    those after them, are left out.
    """
    steps = [operation["step"] for operation in operations if "step" in operation]
    for step, given in zip(steps, logits, strict=True):
        rest = iter(given)
        for one in step:
            row, start = one["row"], one["position"]
            own = texts[row].tokens[start : start + len(one["tokens"])]
            is_known = True
            for offset, (token, expected) in enumerate(zip(one["tokens"], own, strict=True)):
                found, is_known = next(rest), is_known and token == expected
                if is_known:
                    yield (row, start + offset), found


def known_bits(
    texts: Sequence[KnownText], operations: Sequence[Operation], logits: Sequence[Sequence[str]]
) -> Bits:
    """Return the bits of each position, which must be equal whenever it is fed again."""
    bits: Bits = {}
    for place, found in known_logits(texts, operations, logits):
        assert bits.setdefault(place, found) == found
    return bits


class FedStitcher:
    """Runs operations on a slot stitcher of the Python runtime."""

    def __init__(self, bundle: EngineBundle, slots: SlotStitcher) -> None:
        self.slots = slots
        self._num_layers = bundle.manifest.model.num_layers

    def run(self, operations: Sequence[Operation]) -> list[list[str]]:
        """Return for each step the logits of all tokens that it fed, in hexadecimal."""
        results = []
        for operation in operations:
            match operation:
                case {"begin": one}:
                    self.slots.prefill([self.prompt_row(one)])
                case {"step": rows}:
                    results.append(self.step([self.step_row(one) for one in rows]))
                case {"truncate": [row, length]}:
                    self.slots.truncate(row, length)
                case {"release": row}:
                    self.slots.release(row)
        return results

    def step(self, rows: Sequence[StepRow]) -> list[str]:
        logits = self.slots.step(rows)
        count = sum(len(row.tokens) for row in rows)
        return [logits_of(logits, place).tobytes().hex() for place in range(count)]

    def schedule(self, text: str) -> ExitSchedule:
        return parse_schedule(text, num_layers=self._num_layers, horizon=8)

    def prompt_row(self, one: dict[str, Any]) -> PromptRow:
        schedule = self.schedule(one["schedule"])
        tokens = tuple(one["tokens"])
        rows = range(one["row"], one["row"] + 1)
        return self.slots.memory.prompt_row(tokens, schedule, one["max_tokens"], rows)

    def step_row(self, one: dict[str, Any]) -> StepRow:
        schedule = self.schedule(one["schedule"])
        tokens = tuple(one["tokens"])
        plans = tuple(schedule.plan(one["index"] + offset) for offset in range(len(tokens)))
        return StepRow(one["row"], tokens, one["position"], plans)


def bits_alone(stitcher: FedStitcher) -> Bits:
    """Return the bits of TEXTS, each fed alone, a token per pass."""
    operations = alone(TEXTS)
    return known_bits(TEXTS, operations, stitcher.run(operations))


class Drafting(FedStitcher):
    """Drafts some tokens of some rows before each pass, through layers that the rows run."""

    def __init__(self, stitcher: FedStitcher, seed: int) -> None:
        vars(self).update(vars(stitcher))
        self.drafted = 0
        self._random = random.Random(seed)

    def step(self, rows: Sequence[StepRow]) -> list[str]:
        plan = self._random.choice(PLANS)
        room = {
            row.row: self._random.randint(0, 7)
            for row in rows
            if set(plan) <= set(row.plan) and self._random.random() < 0.8
        }
        cache = self.slots._cache
        reserved = {row: min(cache.reserved(row, layer) for layer in plan) for row in room}
        for place in range(7):
            drafting = [
                DraftRow(row.row, self._random.randrange(4, 90), row.position + place)
                for row in rows
                if place < room.get(row.row, 0) and row.position + place < reserved[row.row]
            ]
            if drafting:
                self.slots.draft(drafting, plan)
                self.drafted += len(drafting)
        return super().step(rows)


@contextmanager
def fed_stitcher(path: Path, device: str = "cpu", max_rows: int = 4) -> Iterator[FedStitcher]:
    """Open the bundle's engines, on one thread of a CPU, with slots for ``max_rows`` rows."""
    bundle = EngineBundle.open(path)
    threads = 1 if device == "cpu" else None
    backend = open_backend(bundle.manifest.target, device=device, threads=threads)
    stitcher = load_stitcher(bundle, backend, max_rows, lambda rows: rows)
    layout = KVLayout.of(bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY))
    positions = bundle.manifest.model.max_seq_len
    capacity = None if device == "cpu" else positions + MAX_DRAFT_TOKENS
    limits = Limits(max_rows, positions, KV_BYTES, capacity=capacity)
    pool = BufferPool(backend.memory, KV_BYTES)
    slots = make_slots(stitcher, pool, SlotMemory(limits, layout, bundle.manifest.model.num_layers))
    try:
        yield FedStitcher(bundle, slots)
    finally:
        slots.close()
        stitcher.close()
        backend.close()


def logits_of(logits: StepLogits, place: int) -> Array:
    if isinstance(logits, CandidateLogits):
        return logits.fetch(place)
    assert isinstance(logits, HostLogits)
    return logits.logits[place]


def _begin(row: int, text: KnownText) -> Operation:
    return {
        "begin": {
            "row": row,
            "tokens": text.prompt,
            "schedule": text.schedule,
            "max_tokens": len(text.continuation),
        }
    }


def _fed(row: int, text: KnownText, position: int, tokens: Sequence[int]) -> dict[str, Any]:
    index = position - len(text.prompt)  # index of the generated token
    return {
        "row": row,
        "tokens": list(tokens),
        "position": position,
        "index": index,
        "schedule": text.schedule,
    }
