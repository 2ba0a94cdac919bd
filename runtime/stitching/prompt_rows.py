"""Rows that begin: their prompts, and what is reserved for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kv.reservation import Reservation
from ..schedule import ExitSchedule


@dataclass(frozen=True)
class PromptRow:
    """A row that begins: its number, its prompt, and what is reserved for it.

    ``copies``: numbers of rows that go on from the same prompt (further completions of it).
    ``owner``: of the kept beginnings that the prompt may use, see `PrefixCache`.
    """

    row: int
    tokens: tuple[int, ...]
    schedule: ExitSchedule
    reservation: Reservation
    copies: tuple[int, ...] = ()
    owner: str = ""

    @property
    def rows(self) -> tuple[int, ...]:
        """Its own number and its copies'."""
        return (self.row, *self.copies)

    @property
    def runs_whole(self) -> bool:
        """Whether every layer runs on the whole prompt."""
        layers = range(len(self.reservation.capacities))
        return all(self.active_length(layer) == len(self.tokens) for layer in layers)

    def active_length(self, layer: int) -> int:
        """How many of the prompt's tokens, from the first on, run ``layer``."""
        return self.schedule.prompt_prefix(layer, len(self.tokens))


def reservations(rows: Sequence[PromptRow]) -> list[Reservation]:
    """One for each row and copy."""
    return [row.reservation for row in rows for _ in row.rows]


def num_keeping(rows: Sequence[PromptRow], layer: int) -> int:
    """How many of the rows run ``layer`` after their prompts."""
    return sum(1 for row in rows if row.reservation.capacities[layer])
