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
    """Where the tokens of a pass lie: row after row, each with its tokens in order.

    ``order``: indices of the given rows in the order of the layout. ``lengths`` and ``firsts``
    [rows]: the number of tokens of each row and the index of its first token, in that order;
    ``given_firsts``: the first tokens in the order of the given rows. ``owners`` [tokens]: each
    token's row, an index into ``order``; ``offsets`` [tokens]: how many of the row's tokens precede
    it, None if each row has one token.
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

    ``rows`` [n]: indices into the layout's rows, in the order of the layers' slots, or None for all
    rows in the layout's order; ``counts`` [n]: tokens of each. ``tokens`` [n · longest]: the tokens
    to gather, including padding; None if they already lie like this, or if the layers are called
    row by row (``is_split``). ``own``: the tokens without padding, which lie at ``unpadded`` of the
    gathered ones. ``last`` [n]: the last positions that the rows hold in these layers, if they may
    feed a token after them.
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
        """Return the group of ``rows``, of whose tokens ``counts`` run these layers."""
        longest = max(counts)
        are_all = list(rows) == list(range(len(layout.order)))
        # The tokens of one row always lie together, those of several rows only if all of them run
        # and each row has equally many.
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
    """A layer's calls on a group of tokens, which neighbouring layers share."""

    layer: int
    group: TokenGroup
    bindings: list[Binding]


@dataclass(frozen=True)
class Route:
    """The calls of a pass, which passes reuse while the cache has this ``version``."""

    version: int
    made_of: Fed | Drafted  # its key: rows and the plans of their tokens, as given
    layout: PassLayout
    stops: list[Stop]
    embed: Binding
    head: Binding  # of a pass; a draft step has one for the rows that draft
    logits: HostLogits  # in the order of the given rows and their tokens
    drafting: DraftRows | None  # only for a draft step
