"""Refuse malformed weight files, naming the tensor."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skipdec.engines.errors import CheckpointError
from skipdec.exporter.checkpoint.formats import map_bin, map_safetensors

GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
SECOND = {"dtype": "F16", "shape": [4], "data_offsets": [16, 24]}


def write(path: Path, header: object, data: bytes = bytes(24)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_a_good_file_is_read(tmp_path: Path) -> None:
    metadata = {"__metadata__": {"format": "pt"}}
    data = np.arange(6, dtype="<f4").tobytes()
    tensors = map_safetensors(write(tmp_path / "w", {"b": SECOND, "a": GOOD} | metadata, data))
    assert tensors["a"].data.tolist() == [[0, 1], [2, 3]]
    assert (tensors["b"].dtype, tensors["b"].data.shape) == ("float16", (4,))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"dtype": ""}, "a is ; allowed"),
        ({"dtype": ["F32"]}, "a has a header entry without"),
        ({"dtype": None}, "a has a header entry without"),
        ({"shape": [2.0, 2]}, "a has a header entry without"),
        ({"shape": ["2", 2]}, "a has a header entry without"),
        ({"shape": [True, 4]}, "a has a header entry without"),
        ({"shape": [-2, -2]}, "a has a header entry without"),
        ({"shape": [1] * 100 + [4]}, "a has a header entry without"),
        ({"shape": 4}, "a has a header entry without"),
        ({"shape": [1 << 70]}, "its shape"),
        ({"shape": [10**4000] * 2}, "its shape"),
        ({"shape": [0, 10**30], "data_offsets": [0, 0]}, "its shape"),
        ({"shape": [0, 1 << 31, 1 << 31], "data_offsets": [0, 0]}, "its shape"),
        ({"data_offsets": [0.0, 16.0]}, "a has a header entry without"),
        ({"data_offsets": [0, 16, 16]}, "a has a header entry without"),
        ({"data_offsets": "16"}, "a has a header entry without"),
        ({"data_offsets": [16, 0]}, "its shape"),
        ({"data_offsets": [1 << 70, (1 << 70) + 16]}, "is truncated"),
        ({"data_offsets": [4, 20]}, "a begins at byte 4; the tensors before it end at 0"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, entry: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        map_safetensors(write(tmp_path / "w", {"a": GOOD | entry, "b": SECOND}))


@pytest.mark.parametrize(
    ("header", "data", "text"),
    [
        ({"a": GOOD, "b": SECOND | {"data_offsets": [8, 16]}}, bytes(16), "b begins at byte 8"),
        ({"a": GOOD}, bytes(17), "1 bytes after its last tensor"),
        ([1], b"", "a JSON list"),
        ({"a": 3}, b"", "a has a header entry"),
        (b"[" * 100_000, b"", "nested deeper"),
        (b"\xff\xfe", b"", "not JSON"),
        (b'{"a": NaN}', b"", "a has a header entry"),
        (b'{"\\ud800": 1}', b"", "has the lone surrogate"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: object, data: bytes, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        map_safetensors(write(tmp_path / "w", header, data))


def test_an_archive_on_several_disks_is_refused(tmp_path: Path) -> None:
    locator = b"PK\x06\x07" + struct.pack("<LQL", 1, 0, 2)
    (tmp_path / "w.bin").write_bytes(locator + b"PK\x05\x06" + bytes(18))
    with pytest.raises(CheckpointError, match="is not a zip archive"):
        map_bin(tmp_path / "w.bin")


def test_sparse_and_missing_data_are_refused(tmp_path: Path) -> None:
    state = {"sparse": torch.eye(3).to_sparse(), "none": torch.empty(3, device="meta")}
    torch.save(state, tmp_path / "w.bin")
    with pytest.raises(CheckpointError) as caught:
        map_bin(tmp_path / "w.bin")
    assert [problem.split()[0] for problem in caught.value.problems] == ["sparse", "none"]
