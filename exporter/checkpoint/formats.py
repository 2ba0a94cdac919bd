"""Memory-mapped weights files: ``.safetensors`` and ``.bin`` (``torch.save``).

safetensors (https://github.com/huggingface/safetensors): eight bytes with the little-endian length
of a JSON header, the header (``name -> {dtype, shape, data_offsets}``), the tensors. It is parsed
here rather than by the safetensors package because numpy has no bfloat16, and because a view of the
mapped file takes no memory, however large the tensor is.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ...engines.documents import json_kind, open_regular, parse_json
from ...engines.errors import CheckpointError, few, shown
from ...engines.host.installation import require_extra
from .foreign import library_reads
from .reader import StoredTensor, StoredType

_STORED_TYPES: dict[str, tuple[StoredType, str]] = {
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
}
_PREFIX_BYTES = 8
_MAX_HEADER = 100_000_000  # bytes, the limit of safetensors
_MAX_DIMENSIONS = 8


def map_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the file's tensors by their names in the file.

    Raises CheckpointError, with the first problems and the number of others, if the file is
    truncated, its header is broken, or a tensor is not float32, float16 or bfloat16.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _PREFIX_BYTES:
            raise CheckpointError(str(path), f"has {size} bytes; not a safetensors file")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header_size = int.from_bytes(data[:_PREFIX_BYTES], "little")
    start = _PREFIX_BYTES + header_size
    if start > size:
        raise CheckpointError(
            str(path), f"is truncated: header of {header_size} bytes, {size} in total"
        )
    if header_size > _MAX_HEADER:
        raise CheckpointError(str(path), f"has a header of {header_size} bytes; not safetensors")
    entries = parse_json(data[_PREFIX_BYTES:start], CheckpointError, subject=f"header of {path}")
    if not isinstance(entries, dict):
        raise CheckpointError(str(path), f"has a broken header: a JSON {json_kind(entries)}")
    entries.pop("__metadata__", None)
    problems = [
        f"{name} {problem}"
        for name, entry in entries.items()
        if (problem := _entry_problem(entry, size - start))
    ]
    if problems := problems or list(_gaps(entries, size - start)):
        raise CheckpointError(str(path), *few(problems))
    return {name: _stored_tensor(entry, data, start) for name, entry in entries.items()}


def _stored_tensor(entry: dict[str, Any], data: mmap.mmap, start: int) -> StoredTensor:
    """Return a view of ``data``, in which the tensors' bytes begin at ``start``."""
    dtype, numpy_dtype = _STORED_TYPES[entry["dtype"]]
    offset = start + entry["data_offsets"][0]
    return StoredTensor(dtype, np.ndarray(tuple(entry["shape"]), numpy_dtype, data, offset))


def _gaps(entries: dict[str, dict[str, Any]], data_size: int) -> Iterator[str]:
    """Yield gaps and overlaps of tensors, which the format does not allow."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin = entry["data_offsets"][0]
        if begin != end:
            yield f"{name} begins at byte {begin}; the tensors before it end at {end}"
        end = entry["data_offsets"][1]
    if end != data_size:
        yield f"has {data_size - end} bytes after its last tensor; download it again"


def _entry_problem(entry: Any, data_size: int) -> str | None:  # noqa: ANN401  (any JSON value)
    """Return the problem with one tensor's header entry, or None."""
    broken = "has a header entry without dtype, shape and data_offsets; download the file again"
    if not isinstance(entry, dict):
        return broken
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets)):
        return broken
    if len(offsets) != 2 or len(shape) > _MAX_DIMENSIONS:
        return broken
    begin, end = offsets
    if dtype not in _STORED_TYPES:
        return f"is {dtype}; allowed: {', '.join(_STORED_TYPES)}"
    size = np.dtype(_STORED_TYPES[dtype][1]).itemsize
    if size * math.prod(map(partial(max, 1), shape)) > sys.maxsize:  # numpy's limit, 0 or not
        return f"is too large for any machine: its shape is {shown(shape)}"
    expected = size * math.prod(shape)
    if end - begin != expected:
        return f"is at bytes {begin} to {end}; its shape {shape} needs {expected} bytes"
    if end > data_size:
        return f"ends at byte {end} of {data_size}: the file is truncated; download it again"
    return None


def _are_sizes(value: Any) -> TypeGuard[list[int]]:  # noqa: ANN401
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def map_bin(path: Path) -> dict[str, StoredTensor]:
    """Return the file's tensors by their names in the file.

    Only weights are unpickled; no code runs. Files written before PyTorch 1.6 are not zip archives
    and can't be mapped; the error says how to convert them. Raises CheckpointError, with the
    first problems and the number of others, also for tensors that are not float32, float16 or
    bfloat16.
    """
    require_extra("export", "reading .bin files")
    import torch

    if not _is_archive(path):
        raise CheckpointError(
            str(path),
            "is not a zip archive: truncated, or written by PyTorch before 1.6, which can't be "
            "memory-mapped; download it again, or convert it: "
            "torch.save(torch.load(path, weights_only=True), path)",
        )
    with library_reads(str(path), "can't be read", "download it again"):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                str(path),
                "contains more than tensors, and pickled code is never run here; save the state "
                "dict alone, preferably as safetensors",
            ) from error
    if not isinstance(state, dict):
        raise CheckpointError(
            str(path), f"contains a {type(state).__name__}; expected a state dict"
        )
    tensors, problems = {}, []
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            problems.append(f"{name} is a {type(tensor).__name__}; expected a tensor")
        elif tensor.layout is not torch.strided or tensor.device.type != "cpu":
            problems.append(f"{name} is sparse or has no data; save it as a dense tensor")
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
        raise CheckpointError(str(path), *few(problems))
    return tensors


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (OSError, zipfile.BadZipFile):  # a zip variant that torch does not write
        return False


def share_weights(checkpoint: Path) -> None:
    """Give the weights files in ``checkpoint`` the permissions of its config.json.

    safetensors 0.8 lets only their owner read them, whatever the umask, but a model is often
    exported or served by another user.
    """
    for path in checkpoint.glob("*.safetensors"):
        shutil.copymode(checkpoint / "config.json", path)
