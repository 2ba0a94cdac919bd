"""Of many problems with a checkpoint, the first of each kind are listed and the others counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skipdec.engines.errors import CheckpointError
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource


def test_of_many_problems_of_a_kind_the_first_are_listed_and_the_others_counted(
    directory: Path,
) -> None:
    path = directory / "model.safetensors"
    count = len(load_file(path))
    path.write_bytes(path.read_bytes()[: 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    with pytest.raises(CheckpointError) as truncated:
        open_checkpoint(CheckpointSource(model=str(directory)))
    *first, last = truncated.value.problems
    assert len(first) == 10
    assert all(problem.endswith("the file is truncated; download it again") for problem in first)
    assert last == f"model.safetensors: and {count - 10} more like these"


@pytest.mark.parametrize(("name", "kind"), [("x", "unexpected in this"), ("", "missing")])
def test_of_many_wrong_tensors_the_first_are_listed(directory: Path, name: str, kind: str) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    kept = dict(list(tensors.items())[:3]) if kind == "missing" else tensors
    added = {f"model.decoder.{name}{i}": torch.zeros(1) for i in range(30)} if name else {}
    save_file(kept | added, path)
    with pytest.raises(CheckpointError) as wrong:
        open_checkpoint(CheckpointSource(model=str(directory)))
    assert sum(kind in problem for problem in wrong.value.problems) == 10
