"""A foreign JSON file is read or refused quickly, in one sentence without a traceback."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec.engines.documents import MAX_NESTING, read_json
from skipdec.engines.errors import CheckpointError


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not JSON"),
        (b"[1", "is not JSON"),
        (b'{"a": "\xff"}', r"is not JSON \('utf-8' codec can't decode byte 0xff"),
        (b'{"\\ud800": 1}', r"has the lone surrogate \\ud800, half of a character"),
        (b'[{"a": 1, "b": 2, "a": 1}]', "has the key 'a' twice in one object; give it once"),
        (b"[" + b"9" * 5000 + b"]", r"is not JSON \(Exceeds the limit .* has 5000 digits\)"),
        (nested(MAX_NESTING + 1), "is nested deeper than 100 levels"),
        (nested(100_000), "is nested deeper than 100 levels"),
        (b'{"a":' * 100_000, "is nested deeper than 100 levels"),
    ],
)
def test_invalid_json_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=problem + ".*; download it again") as raised:
        read_json(path, CheckpointError, remedy="download it again")
    assert raised.value.subject == str(path)


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a socket's name has at most 107 bytes


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "No such file"),
        (Path.mkdir, "is a directory; expected a regular file"),
        (os.mkfifo, "is a pipe; expected a regular file"),
        (bind_socket, "can't be read"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device; expected a regular file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
    ids=["nothing", "directory", "pipe", "socket", "device", "loop"],
)
def test_special_files_do_not_block(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises(CheckpointError, match=problem):
        read_json(tmp_path / "file", CheckpointError)


def test_the_deepest_allowed_nesting_and_a_link_to_a_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbf" + nested(MAX_NESTING))
    (tmp_path / "link").symlink_to("file")
    assert isinstance(read_json(tmp_path / "link", CheckpointError), list)
