"""Resuming a ResultFile after any kill gives the file of an undisturbed run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipdec.engines.errors import BundleError, SkipDecError, UsageError
from skipdec.runtime.commands.results import ResultFile

PARAMETERS: dict[str, Any] = {
    "bundle": "d" * 64,
    "schedule": "2x",
    "temperature": 0.0,
    "raw_prompt": False,
}
LINE_OF: dict[str | int, int] = {"a": 1, "b": 2, 3: 4, "d": 5}
LINES: list[dict[str, Any]] = [
    {"id": "a", "text": "é"},
    {"id": "b", "text": ""},
    {"line": 3, "error": "bad"},
    {"id": 3, "text": "x\u2028y"},
    {"id": "d", "text": "z"},
]


def write(path: Path, lines: list[dict[str, Any]], **options: bool) -> None:
    with ResultFile(
        path, LINE_OF, PARAMETERS, **{"resume": False, "force": False, **options}
    ) as file:
        for line in lines:
            file.write([line])


def resume(path: Path) -> None:
    """Write everything that is not done, in order, as a second run does."""
    with ResultFile(path, LINE_OF, PARAMETERS, resume=True, force=False) as file:
        file.write([line for line in LINES if line.get("id") not in file.done])


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("complete") / "out.jsonl"
    write(path, LINES)
    return path.read_bytes()


def test_lines_are_on_disk_as_soon_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(path, LINE_OF, PARAMETERS, resume=False, force=False) as file:
        file.write(LINES[:2])
        assert [json.loads(line) for line in path.read_bytes().splitlines()] == LINES[:2]


@given(cut=st.integers(0, 200))
def test_resuming_after_a_kill_at_any_byte_gives_the_same_file(
    cut: int, complete: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    path.write_bytes(complete[:cut])
    resume(path)
    assert path.read_bytes() == complete


def test_resuming_a_file_with_gaps_restores_the_order(complete: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, [LINES[4], LINES[1]])
    resume(path)
    assert path.read_bytes() == complete


def test_resuming_keeps_results_and_reruns_errors(complete: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(complete)
    with ResultFile(path, LINE_OF, PARAMETERS, resume=True, force=False) as file:
        assert file.done == {"a", "b", 3, "d"}
        assert b"error" not in path.read_bytes()


def test_resuming_without_a_file_creates_one(complete: bytes, tmp_path: Path) -> None:
    resume(tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == complete


def test_an_existing_file_needs_resume_or_force(complete: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old\n")
    with pytest.raises(UsageError, match="--resume continues it, --force replaces it"):
        write(path, LINES)
    assert path.read_bytes() == b"old\n"
    write(path, LINES, force=True)
    assert path.read_bytes() == complete


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"text\n", "line 1 is not a result"),
        (b'{"id": "a"}\n[]\n', "line 2 is not a result"),
        (b'{"name": "a"}\n', "line 1 is not a result"),
        (b'{"id": ["a"]}\n', "line 1 is not a result"),
        (b'{"id": "other"}\n', "has id 'other', which the input does not have"),
    ],
)
def test_foreign_files_are_refused_and_kept(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        resume(path)
    assert path.read_bytes() == content


def write_and_interrupt(path: Path) -> None:
    with ResultFile(path, LINE_OF, PARAMETERS, resume=False, force=False) as file:
        file.write([LINES[1], LINES[0]])
        raise KeyboardInterrupt


def test_an_interrupt_keeps_written_lines(complete: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(path)
    assert len(path.read_bytes().splitlines()) == 2
    resume(path)
    assert path.read_bytes() == complete


def test_a_second_writer_is_refused_and_the_first_continues(
    complete: bytes, tmp_path: Path
) -> None:
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    with ResultFile(path, LINE_OF, PARAMETERS, resume=True, force=False) as file:
        file.write(LINES[:2])
        for name in (path, link):
            with pytest.raises(BundleError, match="is being written by process"):
                resume(name)
        file.write(LINES[2:])
    assert path.read_bytes() == complete


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schedule": "full"}, "schedule was '2x' and is 'full'"),
        ({"bundle": "e" * 64}, "bundle was dddddddddddd… and is eeeeeeeeeeee…"),
        ({"temperature": 0.5, "seed": 3}, "seed was None and is 3"),
        ({"raw_prompt": True}, "raw_prompt was False and is True"),
    ],
)
def test_resuming_with_other_parameters_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    write(path, LINES[:2])
    content, other = path.read_bytes(), PARAMETERS | changes
    with (
        pytest.raises(UsageError, match=problem),
        ResultFile(path, LINE_OF, other, resume=True, force=False),
    ):
        pass
    assert path.read_bytes() == content
    with ResultFile(path, LINE_OF, other, resume=False, force=True) as file:
        file.write(LINES)
    with ResultFile(path, LINE_OF, other, resume=True, force=False) as file:
        assert file.done


def test_a_bundle_replaced_before_opening_is_refused(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "out.jsonl", LINE_OF, PARAMETERS, resume=False, force=False)
    file.check_bundle("d" * 64)
    with pytest.raises(BundleError, match="was replaced"):
        file.check_bundle("e" * 64)


def test_force_keeps_the_old_file_until_the_first_result(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old\n")
    with (
        pytest.raises(KeyboardInterrupt),
        ResultFile(path, LINE_OF, PARAMETERS, resume=False, force=True),
    ):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old\n"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing/out.jsonl", "is not a directory; make it"),
        ("file/out.jsonl", "can't be written"),
        ("n" * 250, "has a name of 250 bytes; allowed: "),
        ("n" * 5000, "File name too long"),
        ("", "is not a regular file"),
        ("loop", "loop"),
        ("out\0.jsonl", "null"),
    ],
)
def test_an_unwritable_output_is_refused_before_work(
    name: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=problem) as caught:
        ResultFile(tmp_path / name, LINE_OF, PARAMETERS, resume=False, force=False)
    assert len(caught.value.problems) == 1


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *how, **more: opened(Path("/dev/full"), *how, **more)
    )
    with pytest.raises(SkipDecError, match="No space left on device") as caught:
        write(tmp_path / "out.jsonl", LINES)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("resume", [False, True])
def test_a_disk_that_was_full_before_is_a_failure_not_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, resume: bool
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)  # which writes the lock
    with pytest.raises(SkipDecError, match="No space left on device") as caught:
        write(tmp_path / "out.jsonl", LINES, resume=resume)
    assert caught.value.exit_code == 1
