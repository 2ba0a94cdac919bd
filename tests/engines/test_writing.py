"""An unwritable file is named, before work if possible, or when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from skipdec.engines import documents
from skipdec.engines.bundle import place_problems, replace_file
from skipdec.engines.bundle.place import WriterLock
from skipdec.engines.documents import naming_failed_write, naming_file, write_file
from skipdec.engines.host.console import describe_os_error
from skipdec.exporter.building.engine import WeightsFile

FULL = Path("/dev/full")  # writing to this file fails as on a full disk
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full: not Linux")


class LibraryError(Exception):
    """The error of a library after a failed write."""


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@needs_full
def test_write_file_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught:
        write_file(FULL, "text")
    assert describe_os_error(caught.value).startswith("/dev/full | no space left on device; free")


def test_problems_of_a_path_are_found_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.json"
    assert place_problems(file, force=False) == []
    file.touch()
    assert place_problems(file, force=True) == []
    for path, words in (
        (file, "exists; pass --force"),
        (tmp_path, "is not a regular file; name one"),
        (tmp_path / "none" / "file.json", "none is not a directory; make it"),
        (tmp_path / ("n" * 250), "has a name of 250 bytes; allowed: "),
        (tmp_path / ("n" * 300), "has a name of 300 bytes; allowed: "),
        (tmp_path / "-", "is not stdout here; give another name, or leave --output out"),
    ):
        (problem,) = place_problems(path, force=False)
        assert words in problem
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    (problem,) = place_problems(file, force=True)
    assert f"no permission to create files in {tmp_path}" in problem


def test_the_data_of_a_result_are_never_replaced_by_it(tmp_path: Path) -> None:
    data, link = tmp_path / "data.jsonl", tmp_path / "link.jsonl"
    assert place_problems(data, force=True, data=data) == []
    data.touch()
    link.symlink_to(data)
    for path in (data, link):
        problems = place_problems(path, force=True, data=data)
        assert problems == ["is also the data; name another file"]
    assert place_problems(data, force=True, data=tmp_path / "other.jsonl") == []


def test_replace_file_names_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise no_space()

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*picture.png'"):
        replace_file(tmp_path / "picture.png", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_of_weights_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise no_space()

    monkeypatch.setattr(os, "fsync", fail)
    with (
        pytest.raises(OSError, match=r"'.*layer\.weights'"),
        WeightsFile(tmp_path / "layer.weights") as file,
    ):
        file.append(np.ones(3, np.float32), np.float32)


def test_named_errors_keep_their_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inner"), naming_file(tmp_path):
        (tmp_path / "inner").read_bytes()


def test_a_library_error_on_a_full_disk_becomes_an_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LibraryError), naming_failed_write(tmp_path, LibraryError):
        raise LibraryError("something else")
    monkeypatch.setattr(documents, "_FULL", 2**62)
    with pytest.raises(OSError, match="No space left"), naming_failed_write(tmp_path, LibraryError):
        raise LibraryError("unexpected pos 576 vs 534")


def test_a_library_error_that_has_a_number_becomes_that_os_error(tmp_path: Path) -> None:
    # safetensors deletes what it could not write, so afterwards the disk is no longer full.
    with pytest.raises(OSError, match="No space left"), naming_failed_write(tmp_path, LibraryError):
        raise LibraryError("Error while serializing: I/O error: No space left (os error 28)")
    with (
        pytest.raises(FileNotFoundError, match=str(tmp_path)),
        naming_failed_write(tmp_path, SafetensorError),
    ):
        save_file({"weight": np.ones(3)}, tmp_path / "missing" / "model.safetensors")


def test_a_lock_on_a_full_disk_is_named_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise no_space()

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match=r"'.*\.result\.lock'"), WriterLock(tmp_path / "result"):
            pass
    assert list(tmp_path.iterdir()) == []
    with WriterLock(tmp_path / "result"):
        assert (tmp_path / ".result.lock").exists()
