"""HostTrainedDrafts: steps of a draft layer on the host, from the states of the last pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....engines.manifest import TensorRole
from ....engines.memory import Array
from ...kv.cache import SlotCache
from ...tokens.logits import KeptLogits
from ..protocol import DraftRow
from ..states import FedEntries, HeldStates
from .stitcher import HostStitcher
from .workspace import TrainedMemory

_Fed = Sequence[FedEntries[Array]]


class HostTrainedDrafts:
    """Runs a draft layer for rows of a running batch, on the tokens and states of `HeldStates`."""

    def __init__(self, engines: HostStitcher, cache: SlotCache, held: HeldStates[Array]) -> None:
        self._engines = engines
        self._cache = cache
        self._layer = cache.memory.num_layers  # the number of its slots
        self._held = held

    def step(self, rows: Sequence[DraftRow], fed: _Fed) -> KeptLogits:
        """Run a step of ``rows`` in the memory of passes, which has room for all that is ``fed``.

        See `SlotStitcher.draft_trained`.
        """
        counts = [len(one.tokens) for one in fed]
        longest = max(counts)
        memory = self._engines.workspace().trained
        self._embed(memory, fed, longest)
        self._join(memory, fed, longest)
        self._run_layer([one.start for one in fed], counts, longest)
        slots = {one.row: slot for slot, one in enumerate(fed)}
        places = [slots[row.row] * longest + counts[slots[row.row]] - 1 for row in rows]
        hidden = self._engines.workspace().whole.hidden_states
        self._held.take(rows, [hidden[place, 0].copy() for place in places])
        memory.head_positions[: len(rows)] = places
        memory.head(len(fed) * longest, len(rows)).run()
        return KeptLogits(memory.logits, memory.token_ids)

    def _embed(self, memory: TrainedMemory, fed: _Fed, longest: int) -> None:
        """Write the embeddings of all tokens; padding repeats its row's last one."""
        count, workspace = len(fed) * longest, self._engines.workspace()
        whole = workspace.whole
        whole.input_ids[:count, 0] = np.concatenate([one.padded(longest) for one in fed])
        whole.position_ids[:count, 0] = np.concatenate([one.positions(longest) for one in fed])
        workspace.ends(count)[0].run()
        memory.joined[:count, 0] = whole.hidden_states[:count, 0]

    def _join(self, memory: TrainedMemory, fed: _Fed, longest: int) -> None:
        """Write the draft layer's input, computed from embeddings and states."""
        count = len(fed) * longest
        joined = memory.joined[:count].reshape(len(fed), longest, 2, -1)
        joined[:, :, 1] = 0
        done = 0
        for one in fed:
            if one.states is not None:
                own = len(one.tokens)
                memory.read[done : done + own] = one.states[:own]
                done += own
        if done:
            memory.states(done).run()
        done = 0
        for slot, one in enumerate(fed):
            own = len(one.tokens)
            if one.states is not None:
                joined[slot, :own, 1] = memory.made[done : done + own, 0]
                done += own
            elif one.output is not None:
                joined[slot, :own, 1] = one.output
        memory.entry(count).run()

    def _run_layer(self, starts: Sequence[int], counts: Sequence[int], longest: int) -> None:
        """Run the layer on the padded rows, whose entries begin at ``starts``."""
        workspace, number = self._engines.workspace(), self._layer
        is_split = longest > 1 and TensorRole.SEQLENS_K in self._engines.session(number).roles
        whole, rows = workspace.whole, len(starts)
        last = [self._cache.reserved(row, number) - 1 for row in self._cache.residents(number)]
        starts = list(map(min, starts, last))  # a row at its end writes what nothing reads again
        whole.set_rows(starts, counts if is_split else [longest] * rows, is_split=is_split)
        entries = np.array(starts)[:, None] + np.arange(longest)
        whole.position_ids[: rows * longest, 0] = entries.reshape(-1)
        firsts = range(0, rows * longest, longest)
        for binding in workspace.layers.calls(
            self._cache, number, counts, firsts, is_split=is_split, is_gathered=False
        ):
            binding.run()
