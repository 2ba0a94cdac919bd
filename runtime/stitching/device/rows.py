"""The memory of a device's steps over rows of different depths.

Hidden states lie in sections of one buffer, [rows, S, E] each: one that the embedding writes and
one per layer. A layer's tokens are gathered from where each was written last. So a token is never
moved when it bypasses layers, and one copy per layer replaces a gather and a scatter.

    rows a b c, layer 3 runs b, layer 4 runs c b:  embed → section 0: a b c
    gather (b of section 0) → layer 3 → its section: b
    gather (c of section 0, b of layer 3's) → layer 4 → its section: c b
    gather (a of section 0, b c of layer 4's) → head

If all layers that run hold the same rows in the same order, with all of their tokens, each reads
the section of the one before it.

Rows of fewer than S tokens are padded: they repeat the last token that runs the layer, at its own
position. The results of padding are not read; its keys and values lie after the row's own, where
the next token that is fed overwrites them.

    row a feeds a0 a1 a2, b feeds b0, S = 4, and a2 bypasses layer 4:
    layer 3 runs a0 a1 a2 a2, b0 b0 b0 b0; layer 4 runs a0 a1 a1 a1, b0 b0 b0 b0
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....engines.backends.device import DeviceMemory
from ....engines.manifest import EngineSpec, TensorRole
from ....engines.memory import ITEM_BYTES, DeviceTensor, Tensor
from ..protocol import StepRow
from .buffers import Field, Staging

_Indices = NDArray[np.int64]
_TOKEN_BYTES = ITEM_BYTES["int64"]
GATHERED = -1  # number of the section of gathered rows


@dataclass(frozen=True)
class StepLayout:
    """The rows that each layer of a step runs, with ``width`` tokens each, and where they lie.

    ``order``: the rows in the order in which the embedding writes them. ``layers``: those that run,
    lowest first, each with its number of rows. ``is_aligned``: all of them run ``order`` with all
    tokens. ``sources`` int64 [L + 1, max_rows * width]: the hidden state that each token of a
    layer's slots reads, as an index into the buffer; the last row is for the head, in ``order``.
    ``fed`` int64 [L, max_rows * width]: the same tokens as indices into ``order``. For empty slots,
    ``sources`` has 0 and ``fed`` has ``max_rows * width``. ``kept`` int64 [tokens of ``order``,
    reads]: where the states lie that trained drafts read.
    """

    order: tuple[int, ...]
    layers: tuple[tuple[int, int], ...]
    is_aligned: bool
    sources: _Indices
    fed: _Indices
    kept: _Indices
    width: int = 1

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        residents: Sequence[Sequence[int]],
        max_rows: int,
        width: int = 1,
        counts: _Indices | None = None,
        reads: Sequence[int] = (),
    ) -> StepLayout:
        """Lay out a step of ``rows``; layer l runs ``residents[l]``, in that order.

        ``counts`` int64 [rows, L + 1]: how many of a row's tokens, from the first on, run each
        layer; the last column is their number. None: one token per row. ``reads``, ascending: the
        numbers of layers after which each token's state is kept.
        """
        num_layers = len(residents)
        if counts is None:
            counts = np.ones((len(rows), num_layers + 1), np.int64)
        common = _common_order(residents, counts)
        order = list(rows) if common is None else common
        given = {row: index for index, row in enumerate(rows)}
        index = {row: index for index, row in enumerate(order)}
        steps = np.arange(width)
        own = np.arange(len(order) * width).reshape(len(order), width)
        now = own.copy()  # where each token's current hidden state lies
        sources = np.zeros((num_layers + 1, max_rows * width), np.int64)
        fed = np.full((num_layers, max_rows * width), max_rows * width, np.int64)
        kept: list[_Indices] = []
        layers = [(layer, len(held)) for layer, held in enumerate(residents) if held]
        for layer, num_rows in layers:
            kept += [now.reshape(-1)] * (bisect_right(reads, layer) - len(kept))
            held = np.array([index[row] for row in residents[layer]])
            running = counts[[given[row] for row in residents[layer]], layer][:, None]
            read = held[:, None], np.minimum(steps, running - 1)
            size = num_rows * width
            sources[layer, :size] = now[read].reshape(-1)
            fed[layer, :size] = own[read].reshape(-1)
            written = (layer + 1) * max_rows * width + own[:num_rows]
            now = now.copy()
            now[held] = np.where(steps < running, written, now[held])
        sources[num_layers, : now.size] = now.reshape(-1)
        kept += [now.reshape(-1)] * (len(reads) - len(kept))
        states = np.stack(kept, axis=1) if kept else np.empty((0, 0), np.int64)
        is_aligned = common is not None
        return cls(tuple(order), tuple(layers), is_aligned, sources, fed, states, width)


def _common_order(residents: Sequence[Sequence[int]], counts: _Indices) -> list[int] | None:
    """Return the common order of all rows, with all tokens, in the layers that run; None without.

    ``counts`` is as in `StepLayout.of`.
    """
    layers = [layer for layer, held in enumerate(residents) if held]
    order = list(residents[layers[0]])
    is_common = (
        len(order) == len(counts)
        and all(list(residents[layer]) == order for layer in layers)
        and bool((counts[:, layers] == counts[:, -1:]).all())
    )
    return order if is_common else None


class DeviceRows:
    """Holds hidden states and integer inputs of steps of up to ``max_rows`` rows.

    Each row has ``width`` tokens. ``capacity``: T of the layers' attention mask; None for engines
    without one. Engines with a mask run one token per row. The masks are copied on the device from
    a table with one row per position, [T, T].
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSpec,
        num_layers: int,
        max_rows: int,
        width: int,
        capacity: int | None,
    ) -> None:
        assert capacity is None or width == 1, "engines with a mask run one token per row"
        hidden = embed.tensor(TensorRole.HIDDEN_STATES_OUT)
        size = int(hidden.shape[-1])
        num_tokens = max_rows * width
        self._device = memory.device
        self._num_layers = num_layers
        self._max_rows = max_rows
        self._width = width
        self._token_bytes = size * ITEM_BYTES[hidden.dtype]
        shape = ((num_layers + 2) * max_rows, width, size)
        self._hidden = memory.empty(shape, hidden.dtype)  # sections: embed's, layers', gathered
        self._inputs: Staging[str] = Staging(memory, copies=2)
        self._inputs.lay_out(
            {
                "tokens": Field("int64", (max_rows, width)),
                "token addresses": Field("int64", (max_rows,)),  # in items of 8 bytes
                "logit rows": Field("int64", (num_tokens,)),
                "sources": Field("int64", (num_layers + 1, num_tokens)),
                # of tokens; the embedding's come last
                "positions": Field("int64", (num_layers + 1, max_rows, width)),
                "starts": Field("int64", (num_layers, max_rows)),  # of the first token
                "lengths": Field("int32", (num_layers, max_rows)),  # total length - 1
            }
        )
        self._fed = memory.empty((max_rows, width), "int64")
        self._masks = None if capacity is None else _Masks(memory, num_layers * max_rows, capacity)

    def fill(
        self, layout: StepLayout, rows: Sequence[StepRow], token_addresses: Mapping[int, int]
    ) -> None:
        """Write the next step's inputs; logits come in the order of ``rows`` and their tokens.

        A row in ``token_addresses``, by its number, feeds the token at that device address instead
        of its own; the address must hold it once the step runs. Such rows feed one token.
        """
        self._inputs.turn()
        host, width = self._inputs.host, self._width
        index_of = {number: index for index, number in enumerate(layout.order)}
        tokens = [(0,) * width] * self._max_rows
        starts, lasts = [0] * self._max_rows, [0] * self._max_rows
        logit_rows: list[int] = []
        own = self._inputs.device["tokens"].address
        addresses = [own + _TOKEN_BYTES * width * index for index in range(self._max_rows)]
        for row in rows:
            index, count = index_of[row.row], len(row.tokens)
            logit_rows += range(index * width, index * width + count)
            tokens[index] = row.tokens + row.tokens[-1:] * (width - count)
            starts[index], lasts[index] = row.position, row.position + count - 1
            addresses[index] = token_addresses.get(row.row, addresses[index])
        at = np.zeros(self._max_rows * width + 1, np.int64)  # positions; 0 for empty slots
        reached = np.array(starts)[:, None] + np.arange(width)  # [max_rows, width]
        at[:-1] = np.minimum(reached, np.array(lasts)[:, None]).reshape(-1)
        host["tokens"][...] = tokens
        host["token addresses"][...] = addresses
        host["token addresses"] //= _TOKEN_BYTES
        host["logit rows"][...] = 0
        host["logit rows"][: len(logit_rows)] = logit_rows
        host["sources"][...] = layout.sources
        np.take(at, layout.fed, out=host["positions"][:-1].reshape(layout.fed.shape))
        host["positions"][-1] = at[:-1].reshape(-1, width)
        host["starts"][...] = host["positions"][:-1, :, 0]
        host["lengths"][...] = host["starts"] + (width - 1)

    def upload(self) -> None:
        """Enqueue the copy of all inputs; never in a graph, because its source changes."""
        self._inputs.upload()

    def prepare(self, rows: int) -> None:
        """Enqueue fetching the tokens of ``rows`` rows, and their masks."""
        if self._width == 1:
            addresses = self._inputs.device["token addresses"].address
            self._device.copy_rows(
                self._fed.address, 0, addresses, rows=rows, row_bytes=_TOKEN_BYTES
            )
        if self._masks is not None:
            self._masks.enqueue(self._inputs.device["positions"].address)

    def gather(self, layer: int, rows: int) -> None:
        """Enqueue gathering the first ``rows`` rows of ``layer`` in the gathered section.

        For the rows of the head, ``layer`` is the number of layers.
        """
        self._device.copy_rows(
            self.section(GATHERED, rows).address,
            self._hidden.address,
            self._inputs.device["sources"][layer : layer + 1].address,
            rows=rows * self._width,
            row_bytes=self._token_bytes,
        )

    def keep(self, target: int, indices: int, count: int) -> None:
        """Enqueue the copy of ``count`` hidden states to the address ``target``.

        ``indices`` is the address of their indices, int64, as in `StepLayout.kept`.
        """
        self._device.copy_rows(
            target, self._hidden.address, indices, rows=count, row_bytes=self._token_bytes
        )

    def section(self, number: int, rows: int, first: int = 0) -> DeviceTensor:
        """Return ``rows`` rows, from ``first`` on, of a section of hidden states [max_rows, S, E].

        ``number``: 0 for the embedding's section, l + 1 for layer l's, or GATHERED.
        """
        start = (self._num_layers + 1 if number == GATHERED else number) * self._max_rows + first
        return self._hidden[start : start + rows]

    def embed_tensors(self, rows: int) -> dict[TensorRole, Tensor]:
        """Return the tensors that the embedding reads and writes."""
        tokens = self._fed if self._width == 1 else self._inputs.device["tokens"]
        return {
            TensorRole.INPUT_IDS: tokens[:rows],
            TensorRole.POSITION_IDS: self._of_slots("positions", self._num_layers, rows, 0),
            TensorRole.HIDDEN_STATES_OUT: self.section(0, rows),
        }

    def layer_tensors(
        self, layer: int, source: int, rows: int, first: int = 0
    ) -> dict[TensorRole, Tensor]:
        """Return a layer's tensors, except its caches, for ``rows`` slots from ``first`` on.

        ``source`` is the section that it reads.
        """
        tensors: dict[TensorRole, Tensor] = {
            TensorRole.POSITION_IDS: self._of_slots("positions", layer, rows, first),
            TensorRole.WRITE_INDICES: self._of_slots("starts", layer, rows, first),
            TensorRole.SEQLENS_K: self._of_slots("lengths", layer, rows, first),
            TensorRole.HIDDEN_STATES: self.section(source, rows, first),
            TensorRole.HIDDEN_STATES_OUT: self.section(layer + 1, rows, first),
        }
        if self._masks is not None:
            start = layer * self._max_rows + first
            tensors[TensorRole.ATTENTION_MASK] = self._masks.rows(start, rows)
        return tensors

    def head_tensors(self, source: int, rows: int) -> dict[TensorRole, Tensor]:
        """Return the head's inputs; ``source`` is the section of its hidden states."""
        return {
            TensorRole.HIDDEN_STATES: self.section(source, rows),
            TensorRole.ROW_POSITIONS: self._inputs.device["logit rows"][: rows * self._width],
        }

    def _of_slots(self, name: str, layer: int, rows: int, first: int) -> DeviceTensor:
        """Return the part of a field [layers, rows, …] for a layer's slots."""
        field = self._inputs.device[name]
        flat = replace(field, shape=(field.shape[0] * self._max_rows, *field.shape[2:]))
        start = layer * self._max_rows + first
        return flat[start : start + rows]


class _Masks:
    """Attention masks, bool [count, 1, 1, T], copied from a table row by row."""

    def __init__(self, memory: DeviceMemory, count: int, capacity: int) -> None:
        self._device = memory.device
        self._masks = memory.empty((count, 1, 1, capacity), "bool")
        self._table = memory.empty((capacity, capacity), "bool")
        table = self._device.pinned(capacity * capacity).view(bool).reshape(capacity, capacity)
        table[...] = np.tri(capacity, dtype=bool)
        self._device.copy_to_device(self._table.address, table)
        self._device.synchronize()  # the host's table is freed afterwards

    def enqueue(self, positions: int) -> None:
        """Copy the table's row for each of the int64 [count] at the address ``positions``."""
        count, _, _, capacity = self._masks.shape
        addresses = (self._masks.address, self._table.address, positions)
        self._device.copy_rows(*addresses, rows=count, row_bytes=capacity)

    def rows(self, start: int, rows: int) -> DeviceTensor:
        """Return masks [rows, 1, 1, T]."""
        return self._masks[start : start + rows]
