"""Host tensors and their twins on a device, sent over in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..engines.backends.device import DeviceMemory
from ..engines.manifest import DType, TensorRole
from ..engines.memory import ITEM_BYTES, Array, DeviceBuffer, DeviceTensor

_ALIGNMENT = 256  # what CUDA gives its own allocations


@dataclass(frozen=True)
class Field:
    """Dtype and shape of one tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, without padding."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Staging:
    """Page-locked host memory and as much device memory, laid out alike.

    ``lay_out`` says which tensors they hold; ``host`` views are written or read by the caller,
    ``device`` ones are bound. Addresses change only where a layout needs more than any before.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._pinned: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._buffer = DeviceBuffer(0, 0)
        self._used = 0
        self.host: dict[TensorRole, Array] = {}
        self.device: dict[TensorRole, DeviceTensor] = {}

    def lay_out(self, fields: Mapping[TensorRole, Field]) -> None:
        """Place ``fields`` one behind the other; what was there before is gone."""
        offsets: dict[TensorRole, int] = {}
        size = 0
        for role, tensor in fields.items():
            offsets[role] = size
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if size > self._buffer.nbytes:
            self._pinned = self._memory.device.pinned(size)
            self._buffer = self._memory.allocate(size)
        self._used = size
        self.host = {
            role: self._pinned[offsets[role] : offsets[role] + tensor.nbytes]
            .view(tensor.dtype)
            .reshape(tensor.shape)
            for role, tensor in fields.items()
        }
        self.device = {
            role: DeviceTensor(
                self._buffer.address + offsets[role], tensor.shape, tensor.dtype, self._buffer
            )
            for role, tensor in fields.items()
        }

    def upload(self) -> None:
        """Enqueue the copy to the device; ``host`` must not change until it has been done."""
        self._memory.device.copy_to_device(self._buffer.address, self._pinned[: self._used])

    def download(self) -> None:
        """Enqueue the copy to the host; ``host`` holds the data after ``synchronize``."""
        self._memory.device.copy_to_host(self._pinned[: self._used], self._buffer.address)
