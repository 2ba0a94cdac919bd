"""HostTrainedDrafts: steps of a draft layer on the host, from the states of the last pass."""

from __future__ import annotations

from collections.abc import Sequence

from ....engines.manifest import TensorRole
from ....engines.memory import Array
from ...kv.cache import SlotCache
from ...tokens.logits import KeptLogits
from ..protocol import DraftRow
from ..states import FedEntries, HeldStates
from .stitcher import HostStitcher
from .workspace import TrainedMemory, Workspace

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
        longest = max(len(one.tokens) for one in fed)
        workspace = self._engines.workspace()
        memory, hidden = workspace.trained, workspace.whole.hidden_states
        self._embed(workspace, fed, longest)
        self._join(memory, fed, longest)
        self._run_layer(workspace, fed, longest)
        ends = {one.row: slot * longest + len(one.tokens) for slot, one in enumerate(fed)}
        places = [ends[row.row] - 1 for row in rows]
        self._held.take(rows, [hidden[place, 0].copy() for place in places])
        memory.head_positions[: len(rows)] = places
        memory.head(len(fed) * longest, len(rows)).run()
        return KeptLogits(memory.logits, memory.token_ids)

    def _embed(self, workspace: Workspace, fed: _Fed, longest: int) -> None:
        """Write the embeddings of all tokens; padding repeats its row's last one."""
        count, whole = len(fed) * longest, workspace.whole
        whole.input_ids[:count, 0] = [token for one in fed for token in one.padded(longest)]
        whole.position_ids[:count, 0] = [place for one in fed for place in one.positions(longest)]
        workspace.ends(count)[0].run()
        workspace.trained.joined[:count, 0] = whole.hidden_states[:count, 0]

    def _join(self, memory: TrainedMemory, fed: _Fed, longest: int) -> None:
        """Write the draft layer's input, computed from embeddings and states."""
        done = 0
        for one in fed:
            if one.states is not None:
                own = len(one.tokens)
                memory.read[done : done + own] = one.states[:own]
                done += own
        if done:
            memory.states(done).run()
        count, done = len(fed) * longest, 0
        memory.joined[:count, 1] = 0
        for first, one in zip(range(0, count, longest), fed, strict=True):
            own = len(one.tokens)
            if one.states is not None:
                memory.joined[first : first + own, 1] = memory.made[done : done + own, 0]
                done += own
            elif one.output is not None:
                memory.joined[first : first + own, 1] = one.output
        memory.entry(count).run()

    def _run_layer(self, workspace: Workspace, fed: _Fed, longest: int) -> None:
        """Run the layer on the padded rows."""
        number, whole = self._layer, workspace.whole
        is_split = longest > 1 and TensorRole.SEQLENS_K in self._engines.session(number).roles
        counts = [len(one.tokens) for one in fed]
        # A row at its end writes what nothing reads again.
        starts = [min(one.start, self._cache.reserved(one.row, number) - 1) for one in fed]
        whole.set_rows(starts, counts if is_split else [longest] * len(fed), is_split=is_split)
        entries = [start + index for start in starts for index in range(longest)]
        whole.position_ids[: len(entries), 0] = entries
        firsts = range(0, len(entries), longest)
        for binding in workspace.layers.calls(
            self._cache, number, counts, firsts, is_split=is_split, is_gathered=False
        ):
            binding.run()
