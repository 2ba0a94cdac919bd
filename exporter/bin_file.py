"""One ``.bin`` file (``torch.save`` of a state dict), mapped into memory."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

from ..engines.errors import CheckpointError
from ..engines.host.extras import require_extra
from .reader import StoredTensor


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
