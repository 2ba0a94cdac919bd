"""The calls of a pass on the host: which layers run which of its tokens, and their bindings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....engines.backends.session import Binding
from ....engines.memory import Array
from ...schedule import LayerPlan
from ...tokens.logits import HostLogits
from ..draft_rows import DraftRows

Fed = list[tuple[int, tuple[LayerPlan, ...]]]
"""The rows of a pass and the plans of their tokens, as given."""

Drafted = tuple[list[int], LayerPlan]
"""The rows of a draft step, and the layers that it runs."""


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
        lengths: Array,
        firsts: Array,
        last: Sequence[int] | None,
        *,
        is_split: bool,
    ) -> TokenGroup:
        """Find the group of ``rows``, of whose ``lengths`` tokens ``counts`` run these layers."""
        longest = max(counts)
        steps = np.arange(longest)
        are_all = list(rows) == list(range(len(lengths)))
        is_dense = are_all and (
            len(rows) == 1 or (min(counts) == longest and bool((lengths == longest).all()))
        )
        held = np.array(counts)
        tokens = (firsts[rows][:, None] + np.minimum(steps, held[:, None] - 1)).reshape(-1)
        unpadded = np.flatnonzero(steps < held[:, None])
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
    order: list[int]  # indices of the given rows as they stand in the pass
    owners: Array  # of each token of the pass, its row's index in ``order``
    offsets: Array | None  # and how many of the row's tokens precede it; None: each has one token
    firsts: Array  # each given row's first token in the pass
    stops: list[Stop]
    embed: Binding
    head: Binding
    logits: HostLogits  # in the order in which rows and their tokens were given
    drafting: DraftRows | None  # of a draft step
