"""A file of weights, ``.safetensors`` or ``.bin`` (``torch.save``), mapped into memory.

safetensors (https://github.com/huggingface/safetensors): eight bytes with the little-endian length
of a JSON header, the header (``name -> {dtype, shape, data_offsets}``), the tensors. It is read
here rather than by the safetensors package because numpy has no bfloat16 and because a view of the
map costs no memory, however large the tensor.
"""

from __future__ import annotations

import json
import math
import mmap
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ...engines.errors import CheckpointError
from ...engines.host.extras import require_extra
from .reader import StoredTensor, StoredType

_STORED_TYPES: dict[str, tuple[StoredType, str]] = {
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
}
_PREFIX_BYTES = 8


def map_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the file's tensors by the names that stand in it.

    Raises CheckpointError, all problems at once, if the file is truncated, its header is broken,
    or a tensor is not float32, float16 or bfloat16.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < _PREFIX_BYTES:
            raise CheckpointError(str(path), f"has {size} bytes; not a safetensors file")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header_size = int.from_bytes(data[:_PREFIX_BYTES], "little")
    start = _PREFIX_BYTES + header_size
    if start > size:
        raise CheckpointError(
            str(path), f"is truncated: header of {header_size} bytes, {size} in all"
        )
    try:
        header = json.loads(data[_PREFIX_BYTES:start])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError) as error:
        raise CheckpointError(str(path), f"has a broken header ({error})") from error
    tensors, problems = {}, []
    for name, entry in entries.items():
        if problem := _entry_problem(entry, size - start):
            problems.append(f"{name} {problem}")
            continue
        dtype, numpy_dtype = _STORED_TYPES[entry["dtype"]]
        view = np.ndarray(
            tuple(entry["shape"]), numpy_dtype, data, offset=start + entry["data_offsets"][0]
        )
        tensors[name] = StoredTensor(dtype, view)
    if problems:
        raise CheckpointError(str(path), *problems)
    return tensors


def _entry_problem(entry: Any, data_size: int) -> str | None:  # noqa: ANN401  (any JSON value)
    """What is wrong with one tensor's header entry; None if nothing is."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        count = math.prod(shape)
    except (KeyError, TypeError, ValueError):
        return "has a header entry without dtype, shape and data_offsets; download the file again"
    if dtype not in _STORED_TYPES:
        return f"is {dtype}; allowed: {', '.join(_STORED_TYPES)}"
    expected = count * np.dtype(_STORED_TYPES[dtype][1]).itemsize
    if end - begin != expected or begin < 0:
        return f"lies at bytes {begin} to {end}; its shape {shape} needs {expected} bytes"
    if end > data_size:
        return f"ends at byte {end} of {data_size}: the file is truncated; download it again"
    return None


def map_bin(path: Path) -> dict[str, StoredTensor]:
    """Return the file's tensors by the names that stand in it.

    Only weights are unpickled, no code is run. Files from before PyTorch 1.6 are not zip archives
    and can't be mapped: they are refused with the way to convert them. Raises CheckpointError,
    all problems at once, also for tensors that are not float32, float16 or bfloat16.
    """
    require_extra("export", "reading .bin files")
    import torch

    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            str(path),
            "is not a zip archive: truncated, or written by PyTorch before 1.6, which can't be "
            "memory-mapped; download it again, or convert it: "
            "torch.save(torch.load(path, weights_only=True), path)",
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            str(path),
            "holds more than tensors, and pickled code is never run here; save the state dict "
            "alone, best as safetensors",
        ) from error
    except RuntimeError as error:
        raise CheckpointError(str(path), f"can't be read ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError(str(path), f"holds a {type(state).__name__}; expected a state dict")
    tensors, problems = {}, []
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            problems.append(f"{name} is a {type(tensor).__name__}; expected a tensor")
        elif tensor.dtype == torch.bfloat16:
            bits = tensor.detach().view(torch.int16).numpy().view("uint16")
            tensors[str(name)] = StoredTensor("bfloat16", bits)
        elif tensor.dtype == torch.float16:
            tensors[str(name)] = StoredTensor("float16", tensor.detach().numpy())
        elif tensor.dtype == torch.float32:
            tensors[str(name)] = StoredTensor("float32", tensor.detach().numpy())
        else:
            problems.append(f"{name} is {tensor.dtype}; allowed: float32, float16, bfloat16")
    if problems:
        raise CheckpointError(str(path), *problems)
    return tensors
