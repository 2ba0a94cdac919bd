"""The calls of a pass on the host: which layers run which of its tokens, and their bindings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....engines.backends.session import Binding
from ....engines.memory import Array
from ...schedule import LayerPlan
from ...tokens.logits import HostLogits
from ..draft_rows import DraftRows
from ..protocol import StepRow

Fed = list[tuple[int, tuple[LayerPlan, ...]]]
"""The rows of a pass and the plans of their tokens, as given."""

Drafted = tuple[list[int], LayerPlan]
"""The rows of a draft step, and the layers that it runs."""


@dataclass(frozen=True, eq=False)
class PassLayout:
    """Where the tokens of a pass lie: row after row, each one's from the first on.

    ``order``: indices of the given rows as they stand. ``lengths`` and ``firsts`` [rows]: tokens of
    each, and the first of them, as they stand; ``given_firsts`` the same firsts as the rows were
    given. ``owners`` [tokens]: each token's row, an index of ``order``; ``offsets`` [tokens]: how
    many of the row's tokens precede it, None if each row has one.
    """

    order: list[int]
    lengths: Array
    firsts: Array
    given_firsts: Array
    owners: Array
    offsets: Array | None

    @classmethod
    def of(cls, rows: Sequence[StepRow], residents: Mapping[int, list[int]]) -> PassLayout:
        """Lay out ``rows`` in the order of the highest layer that all of them reside in."""
        numbers = [row.row for row in rows]
        for inside in residents.values():
            numbers = inside if len(inside) == len(rows) else numbers
        index_of = {row.row: index for index, row in enumerate(rows)}
        order = [index_of[number] for number in numbers]
        lengths = np.array([len(rows[index].tokens) for index in order])
        firsts = np.cumsum(lengths) - lengths
        owners = np.repeat(np.arange(len(order)), lengths)
        offsets = np.arange(len(owners)) - firsts[owners] if len(owners) > len(order) else None
        return cls(order, lengths, firsts, firsts[np.argsort(order)], owners, offsets)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the pass."""
        return len(self.owners)


@dataclass(frozen=True, eq=False)
class TokenGroup:
    """The tokens that neighbouring layers run.

    ``rows`` [n]: indices in the pass, in the order of the layers' slots, or None if they are all as
    they stand; ``counts`` [n]: tokens of each. ``tokens`` [n · longest]: the pass's tokens that are
    gathered, padding included; None if they already lie so, or if the layers are called row by row,
    ``is_split``. ``own``: the tokens without padding, at ``unpadded`` of those gathered. ``last``
    [n]: the last positions that the rows hold in these layers, if they may feed one behind it.
    """

    rows: Sequence[int] | None
    counts: Sequence[int]
    longest: int
    tokens: Array | None
    own: Array
    unpadded: Array | slice
    last: Sequence[int] | None
    is_split: bool

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        counts: Sequence[int],
        layout: PassLayout,
        last: Sequence[int] | None,
        *,
        is_split: bool,
    ) -> TokenGroup:
        """Find the group of ``rows`` as they stand, of whose tokens ``counts`` run these layers."""
        longest = max(counts)
        are_all = list(rows) == list(range(len(layout.order)))
        # One row's tokens lie together however many of them run, those of several rows only if all
        # run and each row has as many.
        is_dense = are_all and (len(rows) == 1 or min(counts) == layout.lengths.max())
        steps, ends = np.arange(longest), np.array(counts)[:, None]
        tokens = (layout.firsts[rows][:, None] + np.minimum(steps, ends - 1)).reshape(-1)
        unpadded = np.flatnonzero(steps < ends)
        return cls(
            None if are_all else rows,
            counts,
            longest,
            None if is_dense or is_split else tokens,
            tokens[unpadded],
            slice(len(tokens)) if len(unpadded) == len(tokens) else unpadded,
            last,
            is_split,
        )


@dataclass(frozen=True)
class Stop:
    """A layer's calls on the tokens of a group, which neighbours share."""

    layer: int
    group: TokenGroup
    bindings: list[Binding]


@dataclass(frozen=True)
class Route:
    """The calls of a pass; passes repeat them while ``version`` of the cache lasts."""

    version: int
    made_of: Fed | Drafted  # rows and the plans of their tokens, as given
    layout: PassLayout
    stops: list[Stop]
    embed: Binding
    head: Binding
    logits: HostLogits  # in the order in which rows and their tokens were given
    drafting: DraftRows | None  # of a draft step
