"""The memory of a device's steps over rows of different depths.

Hidden states lie in windows of one buffer, [rows, 1, E] each: one that the embedding writes and one
a layer. A layer's rows are gathered from where each was written last, so that a row is never moved
when layers bypass it, and one copy a layer does what a gather and a scatter would.

    rows a b c, layer 3 runs b, layer 4 runs c b:  embed → window 0: a b c
    gather (b of window 0) → layer 3 → its window: b
    gather (c of window 0, b of layer 3's) → layer 4 → its window: c b
    gather (a of window 0, b c of layer 4's) → head

Where all layers that run hold the same rows in the same order, each reads the last one's window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....engines.backends.device import DeviceMemory
from ....engines.manifest import EngineSpec, TensorRole
from ....engines.memory import ITEM_BYTES, DeviceTensor, Tensor
from ..protocol import StepRow
from .buffers import Field, Staging

_Indices = NDArray[np.int64]
GATHERED = -1  # in place of a window: the rows that were gathered


@dataclass(frozen=True)
class StepLayout:
    """The rows that each layer of a step runs, and where it finds them.

    ``order``: the rows as the embedding writes them. ``layers``: those that run, lowest first, each
    with its number of rows. ``is_aligned``: all of them run ``order``. ``sources`` int64
    [L + 1, max_rows]: for each slot of a layer the row of the buffer of hidden states to read, and
    of ``order`` last, for the head. ``places`` int64 [L, max_rows]: the same as places in
    ``order``. Slots that no row has read row 0 and place ``max_rows``.
    """

    order: tuple[int, ...]
    layers: tuple[tuple[int, int], ...]
    is_aligned: bool
    sources: _Indices
    places: _Indices

    @classmethod
    def of(
        cls, rows: Sequence[int], residents: Sequence[Sequence[int]], max_rows: int
    ) -> StepLayout:
        """Lay out a step of ``rows``, of which layer l runs ``residents[l]``, in that order."""
        num_layers = len(residents)
        layers = [layer for layer, held in enumerate(residents) if held]
        order = list(residents[layers[0]])
        is_aligned = len(order) == len(rows) and all(
            list(residents[layer]) == order for layer in layers
        )
        order = order if is_aligned else list(rows)
        place = {row: index for index, row in enumerate(order)}
        now = dict(place)  # row -> where its hidden state was written last
        sources = np.zeros((num_layers + 1, max_rows), np.int64)
        places = np.full((num_layers, max_rows), max_rows, np.int64)
        for layer in layers:
            held = residents[layer]
            sources[layer, : len(held)] = [now[row] for row in held]
            places[layer, : len(held)] = [place[row] for row in held]
            now |= {row: (layer + 1) * max_rows + slot for slot, row in enumerate(held)}
        sources[num_layers, : len(order)] = [now[row] for row in order]
        counts = tuple((layer, len(residents[layer])) for layer in layers)
        return cls(tuple(order), counts, is_aligned, sources, places)


class DeviceRows:
    """Holds hidden states and integer inputs of steps of up to ``max_rows`` rows.

    ``capacity``: T of the layers' attention mask, None for engines that take none. A mask's rows
    are copied on the device from a table of all positions' rows, [T, T].
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSpec,
        num_layers: int,
        max_rows: int,
        capacity: int | None,
    ) -> None:
        hidden = embed.tensor(TensorRole.HIDDEN_STATES_OUT)
        width = int(hidden.shape[-1])
        self._device = memory.device
        self._num_layers = num_layers
        self._max_rows = max_rows
        self._row_bytes = width * ITEM_BYTES[hidden.dtype]
        shape = ((num_layers + 2) * max_rows, 1, width)
        self._hidden = memory.empty(shape, hidden.dtype)  # windows: embed's, layers', gathered
        self._inputs: Staging[str] = Staging(memory)
        self._inputs.lay_out(
            {
                "tokens": Field("int64", (max_rows, 1)),
                "logit rows": Field("int64", (max_rows,)),
                "sources": Field("int64", (num_layers + 1, max_rows)),
                "positions": Field("int64", (num_layers + 1, max_rows)),  # the embedding's last
                "lengths": Field("int32", (num_layers, max_rows)),  # total length - 1
            }
        )
        self._masks = None if capacity is None else _Masks(memory, num_layers * max_rows, capacity)

    def fill(self, layout: StepLayout, rows: Sequence[StepRow]) -> None:
        """Write the next step's inputs; logits come in the order of ``rows``."""
        host = self._inputs.host
        place = {number: index for index, number in enumerate(layout.order)}
        tokens = np.zeros(self._max_rows, np.int64)
        at = np.zeros(self._max_rows + 1, np.int64)  # positions by place; 0 where no row is
        logit_rows = np.zeros(self._max_rows, np.int64)
        for index, row in enumerate(rows):
            logit_rows[index] = place[row.row]
            tokens[place[row.row]] = row.tokens[0]
            at[place[row.row]] = row.position
        host["tokens"][:, 0] = tokens
        host["logit rows"][...] = logit_rows
        host["sources"][...] = layout.sources
        np.take(at, layout.places, out=host["positions"][:-1])
        host["positions"][-1] = at[:-1]
        host["lengths"][...] = host["positions"][:-1]

    def upload(self) -> None:
        """Enqueue the copy of all inputs, and of the masks' rows."""
        self._inputs.upload()
        if self._masks is not None:
            self._masks.enqueue(self._inputs.device["positions"].address)

    def gather(self, layer: int, rows: int) -> None:
        """Enqueue the copy of the first ``rows`` rows of ``layer`` to the gathered window.

        ``layer``: the number of layers for those of the head.
        """
        self._device.copy_rows(
            self.window(GATHERED, rows).address,
            self._hidden.address,
            self._inputs.device["sources"][layer : layer + 1].address,
            rows=rows,
            row_bytes=self._row_bytes,
        )

    def window(self, number: int, rows: int) -> DeviceTensor:
        """Return hidden states [rows, 1, E]: 0 the embedding's, l + 1 layer l's, or GATHERED."""
        start = (self._num_layers + 1 if number == GATHERED else number) * self._max_rows
        return self._hidden[start : start + rows]

    def embed_tensors(self, rows: int) -> dict[TensorRole, Tensor]:
        """Return the tensors that the embedding reads and writes."""
        return {
            TensorRole.INPUT_IDS: self._inputs.device["tokens"][:rows],
            TensorRole.POSITION_IDS: self._of_layer("positions", self._num_layers, (rows, 1)),
            TensorRole.HIDDEN_STATES_OUT: self.window(0, rows),
        }

    def layer_tensors(self, layer: int, source: int, rows: int) -> dict[TensorRole, Tensor]:
        """Return a layer's tensors beside its caches; ``source`` is the window that it reads."""
        tensors: dict[TensorRole, Tensor] = {
            TensorRole.POSITION_IDS: self._of_layer("positions", layer, (rows, 1)),
            TensorRole.WRITE_INDICES: self._of_layer("positions", layer, (rows,)),
            TensorRole.SEQLENS_K: self._of_layer("lengths", layer, (rows,)),
            TensorRole.HIDDEN_STATES: self.window(source, rows),
            TensorRole.HIDDEN_STATES_OUT: self.window(layer + 1, rows),
        }
        if self._masks is not None:
            tensors[TensorRole.ATTENTION_MASK] = self._masks.rows(layer * self._max_rows, rows)
        return tensors

    def head_tensors(self, source: int, rows: int) -> dict[TensorRole, Tensor]:
        """Return the head's inputs; ``source`` is the window of its hidden states."""
        return {
            TensorRole.HIDDEN_STATES: self.window(source, rows),
            TensorRole.ROW_POSITIONS: self._inputs.device["logit rows"][:rows],
        }

    def _of_layer(self, name: str, layer: int, shape: tuple[int, ...]) -> DeviceTensor:
        """Return the beginning of a layer's row of a field [L, max_rows]."""
        return replace(self._inputs.device[name][layer : layer + 1], shape=shape)


class _Masks:
    """Attention masks, bool [count, 1, 1, T], copied from a table row by row."""

    def __init__(self, memory: DeviceMemory, count: int, capacity: int) -> None:
        self._device = memory.device
        self._masks = memory.empty((count, 1, 1, capacity), "bool")
        self._table = memory.empty((capacity, capacity), "bool")
        table = self._device.pinned(capacity * capacity).view(bool).reshape(capacity, capacity)
        table[...] = np.tri(capacity, dtype=bool)
        self._device.copy_to_device(self._table.address, table)
        self._device.synchronize()  # the host's table goes

    def enqueue(self, positions: int) -> None:
        """Copy the row of each of the positions int64 [count] at the address."""
        count, _, _, capacity = self._masks.shape
        places = (self._masks.address, self._table.address, positions)
        self._device.copy_rows(*places, rows=count, row_bytes=capacity)

    def rows(self, start: int, rows: int) -> DeviceTensor:
        """Return masks [rows, 1, 1, T]."""
        return self._masks[start : start + rows]
