"""Copy arrays into a backend's memory and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.backends.session import EngineBackend
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import DeviceTensor, Tensor

Array = NDArray[Any]

HOST_ROLES = frozenset({TensorRole.TOTAL_SEQUENCE_LENGTH})


def upload(backend: EngineBackend, array: Array) -> Tensor:
    """Return the array itself, or a copy on the backend's device."""
    if backend.device is None:
        return array
    memory = cast(DeviceMemory, backend.memory)
    tensor = memory.empty(array.shape, cast(Any, str(array.dtype)))
    overwrite(backend, tensor, array)
    return tensor


def overwrite(backend: EngineBackend, tensor: Tensor, array: Array) -> None:
    """Give a tensor of ``upload`` new values."""
    if isinstance(tensor, DeviceTensor):
        assert backend.device is not None
        source = backend.device.pinned(array.nbytes).view(array.dtype).reshape(array.shape)
        source[...] = array
        backend.device.copy_to_device(tensor.address, source)
    else:
        tensor[...] = array


def download(backend: EngineBackend, tensor: Tensor) -> Array:
    """Return a copy of the tensor after all enqueued work is done."""
    if not isinstance(tensor, DeviceTensor):
        return tensor.copy()
    assert backend.device is not None
    flat = backend.device.pinned(tensor.nbytes)
    backend.device.copy_to_host(flat, tensor.address)
    backend.device.synchronize()
    return flat.view(np.dtype(tensor.dtype)).reshape(tensor.shape)


def upload_all(
    backend: EngineBackend, arrays: Mapping[TensorRole, Array]
) -> dict[TensorRole, Tensor]:
    """Upload each array once, so that shared ones stay shared; host scalars stay on the host."""
    moved: dict[int, Tensor] = {}
    for role, array in arrays.items():
        if id(array) not in moved:
            moved[id(array)] = array if role in HOST_ROLES else upload(backend, array)
    return {role: moved[id(array)] for role, array in arrays.items()}
