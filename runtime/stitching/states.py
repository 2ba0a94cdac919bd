"""HeldStates: the states that each row's last pass left for trained drafts, and their use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...engines.errors import UsageError
from ..kv.cache import SlotCache
from .protocol import DraftRow

State = TypeVar("State")
"""States: arrays on the host, or the index of the first state in a device's memory."""


@dataclass(eq=False)
class Held(Generic[State]):
    """What the last pass of a row, or its prompt, left for drafts.

    ``tokens`` were fed from ``position`` on and have ``states``, three each. ``start``: the number
    of entries in the draft layer before. ``fed``: the number of entries added from these states.
    ``output``: the output for the last entry, a guess, if the row took part in the last draft step.
    """

    position: int
    tokens: Sequence[int]
    states: State
    start: int
    fed: int = 0
    output: State | None = None

    @property
    def end(self) -> int:
        """The number of entries that belong to the row's own text."""
        return self.start + self.fed

    def entry(self, position: int) -> int:
        """Return the index of the token at ``position`` in the draft layer's cache."""
        return self.start + position - self.position - 1


@dataclass(frozen=True)
class FedEntries(Generic[State]):
    """What a row in the draft layer's slots feeds in a draft step.

    ``tokens`` become entries from ``start`` on; the last one has ``position`` in the text. Their
    states are the first of ``states``, or ``output``, or none if the row does not draft.
    """

    row: int
    tokens: Sequence[int]
    start: int
    position: int = 0
    states: State | None = None
    output: State | None = None

    def positions(self, width: int) -> list[int]:
        """Return the tokens' positions in the text, repeating the last one up to ``width``."""
        own = len(self.tokens)
        return [max(0, self.position - max(0, own - 1 - index)) for index in range(width)]

    def padded(self, width: int) -> list[int]:
        """Return the tokens, repeating the last one up to ``width``."""
        return [*self.tokens, *([self.tokens[-1]] * (width - len(self.tokens)))]


class HeldStates(Generic[State]):
    """Holds states for trained drafts, row by row, and determines what a draft step feeds.

    The entry of a token is computed from its embedding and the states of the token before it. The
    first step after a pass feeds the tokens that the pass accepted and the one drawn last, with the
    states that the pass left; each later step feeds a guess, with the layer's own output instead.
    The layer's cache holds the entries one after the other, whatever their positions. Tokens of
    prompts, and of passes after which nothing was drafted, have no entry.

    All rows in the layer's slots take part in its calls. A row that does not draft feeds token 0
    after its own entries, where its next entry overwrites it.

    Worked: a pass fed a b c at positions 5, 6, 7, and b was accepted, so that d was drawn at
    position 7. With 3 entries so far, the first step feeds b and d as entries 3 and 4, with the
    states of a and b, and the second feeds the guess after d as entry 5. After the next pass
    entries go on at 5.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._layer = cache.memory.num_layers  # the number of the draft layer's slots
        self._held: dict[int, Held[State]] = {}  # by row

    @property
    def all_states(self) -> list[State]:
        """The states of all rows, in no order; copies of a row share them."""
        return [held.states for held in self._held.values()]

    def hold(self, row: int, position: int, tokens: Sequence[int], states: State) -> None:
        """Record what a pass of ``row`` left; ``states`` must not change until the next one."""
        before = self._held.get(row)
        start = 0 if before is None else before.end
        self._held[row] = Held(position, tokens, states, start)

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._held.pop(row, None)

    def clear(self) -> None:
        """Forget all rows."""
        self._held.clear()

    def feed(self, rows: Sequence[DraftRow]) -> list[FedEntries[State]]:
        """Return what each row in the draft layer's slots feeds, slot by slot, when ``rows`` draft.

        Raises UsageError for a token whose position is already written, or not reserved.
        """
        for row in rows:
            self._require_position(row)
        drafting = {row.row: row for row in rows}
        return [
            self._entries(drafting[number])
            if number in drafting
            else FedEntries(number, (0,), self._held[number].end)
            for number in self._cache.residents(self._layer)
        ]

    def take(self, rows: Sequence[DraftRow], outputs: Sequence[State]) -> None:
        """Record the layer's outputs for the tokens of ``rows``, which have run."""
        for held in self._held.values():
            held.output = None
        for row, output in zip(rows, outputs, strict=True):
            held = self._held[row.row]
            held.output = output
            if self._is_first(row):
                held.fed = row.position - held.position

    def _entries(self, row: DraftRow) -> FedEntries[State]:
        held = self._held[row.row]
        if not self._is_first(row):
            entry = held.entry(row.position)
            return FedEntries(row.row, (row.token,), entry, row.position, output=held.output)
        tokens = (*held.tokens[1 : row.position - held.position], row.token)
        return FedEntries(row.row, tokens, held.start, row.position, states=held.states)

    def _is_first(self, row: DraftRow) -> bool:
        """Return True if this is the row's first draft step after its last pass."""
        return row.position == self._cache.length(row.row)

    def _require_position(self, row: DraftRow) -> None:
        """Raise UsageError for a token whose position is already written, or not reserved."""
        held = self._held.get(row.row)
        if held is None:
            raise UsageError(f"row {row.row}", "drafts without states of a pass")
        low = self._cache.length(row.row)
        if row.position < low or (row.position > low and held.output is None):
            raise UsageError(f"row {row.row}", f"drafts at {row.position} before {low}")
        if held.entry(row.position) >= self._cache.reserved(row.row, self._layer):
            raise UsageError(f"row {row.row}", f"drafts at {row.position}, beyond what it reserved")
