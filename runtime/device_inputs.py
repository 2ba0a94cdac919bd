"""What the engines of one call read beside hidden states and caches, made on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engines.backends.device import DeviceMemory
from ..engines.manifest import TensorRole
from ..engines.memory import DeviceTensor
from .staging import Field, Staging


class DeviceInputs:
    """The integer inputs of ``rows`` x ``length`` tokens, uploaded in one copy.

    ``capacity``: T of the attention mask, None for engines that take none. ``num_gathered``: R of
    the head. Every query row of the mask has at least one True.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._staging = Staging(memory)

    def lay_out(self, rows: int, length: int, num_gathered: int, capacity: int | None) -> None:
        """Make room; ``fill`` and ``upload`` follow."""
        role = TensorRole
        fields = {
            role.INPUT_IDS: Field("int64", (rows, length)),
            role.POSITION_IDS: Field("int64", (rows, length)),
            role.WRITE_INDICES: Field("int64", (rows,)),
            role.SEQLENS_K: Field("int32", (rows,)),
            role.ROW_POSITIONS: Field("int64", (num_gathered,)),
        }
        if capacity is not None:
            fields[role.ATTENTION_MASK] = Field("bool", (rows, 1, length, capacity))
        self._staging.lay_out(fields)

    @property
    def tensors(self) -> dict[TensorRole, DeviceTensor]:
        """The tensors on the device, by role."""
        return self._staging.device

    def fill(
        self,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        row_positions: Sequence[int],
    ) -> None:
        """Write rows of tokens, the first of row r at position ``starts[r]``.

        Rows may be shorter than the layout's length, and fewer than its rows: what remains reads
        token 0 and is never read itself. ``row_positions``: flat indices into rows x length.
        """
        role, host = TensorRole, self._staging.host
        rows, length = host[role.INPUT_IDS].shape
        host[role.INPUT_IDS][...] = 0
        for index, row in enumerate(tokens):
            host[role.INPUT_IDS][index, : len(row)] = row
        first = np.zeros(rows, np.int64)  # [rows]
        first[: len(starts)] = starts
        positions = first[:, None] + np.arange(length)  # [rows, length]
        host[role.POSITION_IDS][...] = positions
        host[role.WRITE_INDICES][...] = first
        host[role.SEQLENS_K][...] = first
        host[role.SEQLENS_K][: len(tokens)] += np.array([len(row) - 1 for row in tokens], np.int32)
        host[role.ROW_POSITIONS][...] = 0
        host[role.ROW_POSITIONS][: len(row_positions)] = row_positions
        if role.ATTENTION_MASK in host:
            mask = host[role.ATTENTION_MASK]  # [rows, 1, length, T]
            np.less_equal(np.arange(mask.shape[-1]), positions[:, None, :, None], out=mask)

    def upload(self) -> None:
        """Enqueue the copy to the device."""
        self._staging.upload()
