"""DeviceTrainedDrafts: steps of a draft layer on a device, from the states of the last pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ....engines.backends.device import DeviceMemory
from ....engines.backends.session import EngineSession
from ....engines.constants import integer
from ....engines.manifest import NUM_JOINED, EngineKind, TensorRole
from ....engines.memory import ITEM_BYTES, DeviceTensor, Tensor
from ...tokens.logits import StepLogits
from ..drafts import TrainedEngines
from ..protocol import cache_tensors
from ..states import FedEntries
from .buffers import Field, NarrowResults, Staging
from .rows import StepLayout
from .steps import DeviceSteps, GraphCapture, StepGraphs, StepPart, borrowed

_WIDTH = 1 + integer("draft_max_tokens")  # maximum number of a row's tokens in a pass
_MOST_PARTS = 64
_NUM_READ = NUM_JOINED[EngineKind.STATES]  # states of a token

_Work = Callable[[], None]


class _Call(NamedTuple):
    """The key of a captured step: its padded rows, their tokens, and their slots."""

    rows: int
    width: int
    is_first: bool  # True if some rows read states of a pass
    key: DeviceTensor
    value: DeviceTensor

    @property
    def tokens(self) -> int:
        return self.rows * self.width


class DeviceTrainedDrafts:
    """Holds states of passes and prompts, and runs the engines of trained drafts on them.

    A token's three states lie side by side: first those of a pass, in the order of its tokens, then
    those of prompts whose rows have not run a pass yet. Hidden states of draft steps lie in three
    sections of one buffer: embeddings, results of the engine that reads states, and the layer's
    outputs. So the state to join to an embedding is given by its index in the buffer; a row that
    does not draft reads its embedding twice.

    Steps are graphs, one for each number of padded rows and tokens, with and without the engine
    that reads states. The rows' numbers and positions are data.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSession,
        engines: TrainedEngines,
        max_rows: int,
        padded_rows: Callable[[int], int],
        capture: GraphCapture,
    ) -> None:
        hidden = embed.spec.tensor(TensorRole.HIDDEN_STATES_OUT)
        size, dtype, tokens = int(hidden.shape[-1]), hidden.dtype, max_rows * _WIDTH
        self._device = memory.device
        self._embed, self._engines = embed, engines
        self._max_rows, self._max_tokens = max_rows, tokens
        self._padded_rows = padded_rows
        self._state_bytes = size * ITEM_BYTES[dtype]
        self._held = memory.empty((tokens + max_rows, _NUM_READ * size), dtype)
        self._ends = memory.empty((_NUM_READ, max_rows, size), dtype)  # of the last prompts
        self._read = memory.empty((tokens, 1, _NUM_READ * size), dtype)
        self._sections = memory.empty((3 * tokens, 1, size), dtype)
        self._joined = memory.empty((tokens, 1, 2 * size), dtype)
        self._entered = memory.empty((tokens, 1, size), dtype)
        self._inputs: Staging[str] = Staging(memory, copies=2)
        self._inputs.lay_out(
            {
                "tokens": Field("int64", (tokens, 1)),
                "positions": Field("int64", (tokens, 1)),
                "entries": Field("int64", (tokens, 1)),
                "read": Field("int64", (tokens,)),
                "joined": Field("int64", (tokens, 2)),
                "starts": Field("int64", (max_rows,)),
                "lengths": Field("int32", (max_rows,)),  # total length - 1
                "logit rows": Field("int64", (max_rows,)),
            }
        )
        self._kept: Staging[str] = Staging(memory, copies=2)
        self._kept.lay_out({"kept": Field("int64", (tokens, _NUM_READ))})
        self._kept_of: StepLayout | None = None  # the layout whose places were uploaded last
        token_ids = np.array(engines.spec.token_ids, np.int64)
        self._results = NarrowResults(memory, engines.head.spec, max_rows, token_ids)
        self._graphs = StepGraphs(memory.device, capture)

    def keep(self, steps: DeviceSteps, layout: StepLayout) -> None:
        """Enqueue the copy of the states of a step, token by token in the order of ``layout``."""
        if layout is not self._kept_of:
            self._kept.turn()
            self._kept.host["kept"][: len(layout.kept)] = layout.kept
            self._kept.upload()
            self._kept_of = layout
        steps.keep(self._held.address, self._kept.device["kept"].address, layout.kept.size)

    def keep_ends(self, index: int, states: DeviceTensor, last: DeviceTensor) -> None:
        """Enqueue the copy of the ``index``-th states of prompts' last tokens.

        ``last`` int64 [rows] has their indices in ``states`` [rows, S, E].
        """
        self._device.copy_rows(
            self._ends[index : index + 1].address,
            states.address,
            last.address,
            rows=last.shape[0],
            row_bytes=self._state_bytes,
        )

    def hold_end(self, row: int, used: Sequence[int]) -> int:
        """Store the states of the ``row``-th of the last prompts outside ``used``; return where."""
        places = range(self._max_tokens, self._max_tokens + self._max_rows)
        place = next(place for place in places if place not in used)
        self._device.copy_strided(
            self._held[place : place + 1].address,
            self._ends.address + row * self._state_bytes,
            pitch=self._state_bytes,
            width=self._state_bytes,
            height=_NUM_READ,
            source_pitch=self._max_rows * self._state_bytes,
        )
        return place

    def step(
        self,
        fed: Sequence[FedEntries[int]],
        drafting: Sequence[int],
        slots: Callable[[int], tuple[Tensor, Tensor]],
    ) -> tuple[StepLogits, list[int]]:
        """Run a step of the tokens ``fed`` by the layer's slots; see `SlotStitcher.draft_trained`.

        Returns the logits of the rows ``drafting``, by their numbers, and where the layer's outputs
        for their last tokens lie. ``slots(n)`` returns key and value of the layer's first n slots.
        """
        width = 1 << (max(len(one.tokens) for one in fed) - 1).bit_length()
        rows = self._padded_rows(len(fed))
        at = {one.row: slot * width + len(one.tokens) - 1 for slot, one in enumerate(fed)}
        places = [at[row] for row in drafting]
        self._fill(fed, width, places)
        self._inputs.upload()
        is_first = any(one.states is not None for one in fed)
        key, value = map(borrowed, slots(rows))
        self._graphs.enqueue([self._part(_Call(rows, width, is_first, key, value))])
        return self._results.download(len(drafting)).wait(), places

    def close(self) -> None:
        """Destroy all graphs and bindings."""
        self._graphs.clear()

    def _fill(self, fed: Sequence[FedEntries[int]], width: int, places: Sequence[int]) -> None:
        self._inputs.turn()
        host = self._inputs.host
        for name in host:
            host[name][...] = 0
        embedded, made, outputs = (number * self._max_tokens for number in range(3))
        everything = np.arange(self._max_tokens)
        host["joined"][...] = embedded + everything[:, None]
        for slot, one in enumerate(fed):
            held = slice(slot * width, (slot + 1) * width)
            host["tokens"][held, 0] = one.padded(width)
            host["positions"][held, 0] = one.positions(width)
            host["entries"][held, 0] = range(one.start, one.start + width)
            if one.states is not None:
                own = np.minimum(np.arange(width), len(one.tokens) - 1)
                host["read"][held] = one.states + own
                host["joined"][held, 1] = made + everything[held]
            elif one.output is not None:
                host["joined"][held, 1] = outputs + one.output
            host["starts"][slot] = one.start
        host["lengths"][...] = host["starts"] + (width - 1)
        host["logit rows"][: len(places)] = places

    def _part(self, call: _Call) -> StepPart:
        slots = call.key.shape, call.key.address, call.value.address
        key = call.rows, call.width, call.is_first, slots
        parts = self._graphs.parts
        if key not in parts:
            if len(parts) >= _MOST_PARTS:
                self._graphs.clear()
            parts[key] = StepPart(key, self._work(call))
        return parts[key]

    def _work(self, call: _Call) -> list[_Work]:
        """Bind all engines of a step."""
        role, tokens, device = TensorRole, call.tokens, self._inputs.device
        embedded, made, outputs = (
            self._sections[number * self._max_tokens : number * self._max_tokens + tokens]
            for number in range(3)
        )
        work: list[_Work] = []
        if call.is_first:
            read = self._read[:tokens]
            work += [
                self._copying(read, self._held, device["read"], tokens),
                self._graphs.bind(
                    self._engines.states, {role.STATES: read, role.HIDDEN_STATES_OUT: made}
                ),
            ]
        embedding: dict[TensorRole, Tensor] = {
            role.INPUT_IDS: device["tokens"][:tokens],
            role.POSITION_IDS: device["positions"][:tokens],
            role.HIDDEN_STATES_OUT: embedded,
        }
        joined, entered = self._joined[:tokens], self._entered[:tokens]
        entry: dict[TensorRole, Tensor] = {role.STATES: joined, role.HIDDEN_STATES_OUT: entered}
        head: dict[TensorRole, Tensor] = dict(self._results.tensors(call.rows))
        head[role.HIDDEN_STATES] = outputs
        head[role.ROW_POSITIONS] = device["logit rows"][: call.rows]
        return [
            *work,
            self._graphs.bind(self._embed, embedding),
            self._copying(joined, self._sections, device["joined"], 2 * tokens),
            self._graphs.bind(self._engines.entry, entry),
            *self._layer_runs(call, entered, outputs),
            self._graphs.bind(self._engines.head, head),
        ]

    def _layer_runs(self, call: _Call, read: DeviceTensor, written: DeviceTensor) -> list[_Work]:
        """Return the layer's call on all rows, or one per row, as in `DeviceSteps`."""
        role, session, device = TensorRole, self._engines.layer, self._inputs.device
        is_split = call.width > 1 and role.SEQLENS_K in session.roles
        count = 1 if is_split else call.rows
        total = np.array(call.key.shape[2], np.int32)

        def by_row(tensor: DeviceTensor, first: int) -> DeviceTensor:
            """Return the tokens [tokens, …] of ``count`` rows as [count, S, …]."""
            own = tensor[first * call.width : (first + count) * call.width]
            return replace(own, shape=(count, call.width, *tensor.shape[2:]))

        return [
            self._graphs.bind(
                session,
                {
                    role.HIDDEN_STATES: by_row(read, first),
                    role.HIDDEN_STATES_OUT: by_row(written, first),
                    role.POSITION_IDS: by_row(device["entries"], first),
                    role.WRITE_INDICES: device["starts"][first : first + count],
                    role.SEQLENS_K: device["lengths"][first : first + count],
                    role.TOTAL_SEQUENCE_LENGTH: total,
                    **cache_tensors(
                        call.key[first : first + count], call.value[first : first + count]
                    ),
                },
            )
            for first in range(0, call.rows, count)
        ]

    def _copying(
        self, target: DeviceTensor, source: DeviceTensor, index: DeviceTensor, rows: int
    ) -> _Work:
        """Return the work that copies ``rows`` rows of ``source``, given by ``index``."""
        return partial(
            self._device.copy_rows,
            target.address,
            source.address,
            index.address,
            rows=rows,
            row_bytes=source.nbytes // source.shape[0],
        )
