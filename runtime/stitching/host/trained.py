"""HostTrainedDrafts: steps of a draft layer on the host, behind the states of the last pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....engines.backends.session import Binding
from ....engines.errors import UsageError
from ....engines.manifest import TensorRole
from ....engines.memory import Array
from ...kv.cache import SlotCache
from ...tokens.logits import KeptLogits
from ..protocol import DraftRow
from .stitcher import HostStitcher
from .workspace import TrainedMemory


@dataclass(eq=False)
class _Held:
    """What the last pass of a row, or its prompt, left for drafts.

    ``tokens`` were fed from ``position`` on, with ``states`` [tokens, 3, E]. ``start``: the entries
    that the draft layer held before. ``fed``: those that it has made of these states; ``output``
    [E]: of the last entry, a guess's.
    """

    position: int
    tokens: Sequence[int]
    states: Array
    start: int
    fed: int = 0
    output: Array | None = None

    @property
    def end(self) -> int:
        """How many entries of the row are of its own text."""
        return self.start + self.fed

    def entry(self, position: int) -> int:
        """Return the entry of the token at ``position``, in the cache of the draft layer."""
        return self.start + position - self.position - 1


class HostTrainedDrafts:
    """Runs a draft layer for rows of a running batch.

    The entry of a token is made of its embedding and of the states of the token before it. The
    first step behind a pass feeds the tokens that the pass accepted and the one drawn last, with
    the states that the pass left; each later step feeds a guess, with the layer's own output in
    their place. The layer's cache holds the entries one behind the other, whatever their positions:
    tokens without one, those of prompts and of passes behind which nothing was drafted, are left
    out.

    All rows in the layer's slots take part in its calls. One that does not draft feeds token 0
    behind its own entries, where its next entry overwrites what is written.

    Worked: a pass fed a b c at positions 5, 6, 7, and b held, so that d was drawn at position 7.
    With 3 entries so far, the first step feeds b and d at entries 3 and 4, with the states of a and
    b, and the second the guess behind d, at entry 5. Behind the next pass entries go on at 5.
    """

    def __init__(self, engines: HostStitcher, cache: SlotCache) -> None:
        self._engines = engines
        self._cache = cache
        self._layer = cache.memory.num_layers  # the number of its slots
        self._held: dict[int, _Held] = {}  # by row

    def hold(self, row: int, position: int, tokens: Sequence[int], states: Array) -> None:
        """Take what a pass of ``row`` left; ``states`` must stay as they are until the next one."""
        before = self._held.get(row)
        start = 0 if before is None else before.end
        self._held[row] = _Held(position, tokens, states, start)

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._held.pop(row, None)

    def clear(self) -> None:
        """Forget all rows."""
        self._held.clear()

    def step(self, rows: Sequence[DraftRow]) -> KeptLogits:
        """Run a step; see `SlotStitcher.draft_trained`."""
        for row in rows:
            self._require_position(row)
        drafting = {row.row: row for row in rows}
        residents = list(self._cache.residents(self._layer))
        fed = [self._tokens(drafting.get(number)) for number in residents]
        longest = max(map(len, fed))
        starts = [
            self._held[number].end
            if number not in drafting
            else self._held[number].entry(drafting[number].position) - len(tokens) + 1
            for number, tokens in zip(residents, fed, strict=True)
        ]
        # A pass fed as many tokens of as many rows, so that its memory suffices.
        memory = self._engines.workspace().trained
        assert len(fed) * longest <= len(memory.joined)
        self._embed(memory, residents, fed, drafting, longest)
        self._join(memory, residents, fed, drafting, longest)
        self._run_layer(starts, [len(tokens) for tokens in fed], longest)
        slots = {number: slot for slot, number in enumerate(residents)}
        places = [slots[row.row] * longest + len(fed[slots[row.row]]) - 1 for row in rows]
        hidden = self._engines.workspace().whole.hidden_states
        for row, place in zip(rows, places, strict=True):
            held = self._held[row.row]
            held.output = hidden[place, 0].copy()
            if self._is_first(row):
                held.fed = row.position - held.position
        memory.head_positions[: len(rows)] = places
        memory.head(len(fed) * longest, len(rows)).run()
        return KeptLogits(memory.logits, memory.token_ids)

    def _is_first(self, row: DraftRow) -> bool:
        """Return True if the row drafts for the first time behind its last pass."""
        return row.position == self._cache.length(row.row)

    def _tokens(self, row: DraftRow | None) -> list[int]:
        """Return the tokens that a row feeds."""
        if row is None:
            return [0]
        if not self._is_first(row):
            return [row.token]
        held = self._held[row.row]
        return [*held.tokens[1 : row.position - held.position], row.token]

    def _embed(
        self,
        memory: TrainedMemory,
        residents: Sequence[int],
        fed: Sequence[Sequence[int]],
        drafting: dict[int, DraftRow],
        longest: int,
    ) -> None:
        """Write the embeddings of all tokens, those of padding the last one's of its row."""
        count, workspace = len(fed) * longest, self._engines.workspace()
        whole = workspace.whole
        tokens = [[*own, *([own[-1]] * (longest - len(own)))] for own in fed]
        lasts = [drafting[number].position if number in drafting else 0 for number in residents]
        steps = np.arange(longest)
        behind = np.array([len(own) - 1 for own in fed])[:, None] - np.minimum(
            steps, np.array([len(own) - 1 for own in fed])[:, None]
        )  # [rows, longest]
        whole.input_ids[:count, 0] = np.array(tokens).reshape(-1)
        positions = np.maximum(np.array(lasts)[:, None] - behind, 0)
        whole.position_ids[:count, 0] = positions.reshape(-1)
        workspace.ends(count)[0].run()
        memory.joined[:count, 0] = whole.hidden_states[:count, 0]

    def _join(
        self,
        memory: TrainedMemory,
        residents: Sequence[int],
        fed: Sequence[Sequence[int]],
        drafting: dict[int, DraftRow],
        longest: int,
    ) -> None:
        """Write the draft layer's input, made of embeddings and states."""
        count = len(fed) * longest
        joined = memory.joined[:count].reshape(len(fed), longest, 2, -1)
        joined[:, :, 1] = 0
        first = [slot for slot, number in enumerate(residents) if number in drafting]
        first = [slot for slot in first if self._is_first(drafting[residents[slot]])]
        done = 0
        for slot in first:
            own = len(fed[slot])
            memory.read[done : done + own] = self._held[residents[slot]].states[:own]
            done += own
        if done:
            memory.states(done).run()
        done = 0
        for slot, number in enumerate(residents):
            own = len(fed[slot])
            if slot in first:
                joined[slot, :own, 1] = memory.made[done : done + own, 0]
                done += own
            elif number in drafting:
                joined[slot, :own, 1] = self._held[number].output
        memory.entry(count).run()

    def _run_layer(self, starts: Sequence[int], counts: Sequence[int], longest: int) -> None:
        """Run the layer on the padded rows, whose entries begin at ``starts``."""
        workspace, number = self._engines.workspace(), self._layer
        is_split = longest > 1 and TensorRole.SEQLENS_K in self._engines.session(number).roles
        whole, rows = workspace.whole, len(starts)
        last = [self._cache.reserved(row, number) - 1 for row in self._cache.residents(number)]
        starts = list(map(min, starts, last))  # a row at its end writes what nobody reads again
        whole.set_rows(starts, counts if is_split else [longest] * rows, is_split=is_split)
        entries = np.array(starts)[:, None] + np.arange(longest)
        whole.position_ids[: rows * longest, 0] = entries.reshape(-1)
        bindings: list[Binding] = []
        if is_split:
            for slot, count in enumerate(counts):
                bindings.append(
                    workspace.layers.layer(
                        self._cache,
                        number,
                        1,
                        count,
                        slot=slot,
                        first_token=slot * longest,
                        is_gathered=False,
                    )
                )
        else:
            bound = workspace.layers.layer(self._cache, number, rows, longest, is_gathered=False)
            bindings.append(bound)
        for binding in bindings:
            binding.run()

    def _require_position(self, row: DraftRow) -> None:
        """Raise UsageError for a token whose position is written already, or not held."""
        held, low = self._held.get(row.row), self._cache.length(row.row)
        if held is None:
            raise UsageError(f"row {row.row}", "drafts without states of a pass")
        if not self._is_first(row) and held.output is None:
            raise UsageError(f"row {row.row}", f"drafts at {row.position} before {low}")
        if held.entry(row.position) >= self._cache.reserved(row.row, self._layer):
            raise UsageError(f"row {row.row}", f"drafts at {row.position}, behind what it reserved")
