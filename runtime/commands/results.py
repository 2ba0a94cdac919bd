"""ResultFile: lines of results that survive a kill and are continued later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ...engines.bundle import replace_file
from ...engines.errors import UsageError
from .jsonl import RecordId, to_bytes


class ResultFile:
    """A JSON-lines file that grows by whole flushed chunks.

    Without ``resume`` the file must not exist, unless ``force`` replaces it. With ``resume``,
    results that it holds are in ``done`` and stay. A half-written last line and lines of errors
    are dropped, so that their records run again. The file is open inside the object's with block,
    whose end puts the lines in the order of the input, if interruptions left them in another: the
    file ends as if it had been written at once.

    ``line_of``: the input's line number of each id.

    Raises UsageError if the file exists and neither was asked, or does not belong to this input.
    """

    def __init__(
        self, path: Path, line_of: Mapping[RecordId, int], *, resume: bool, force: bool
    ) -> None:
        if path.exists() and not (resume or force):
            raise UsageError(
                str(path), "exists; --resume continues it, --force replaces it, or name another"
            )
        self._path = path
        self._line_of = line_of
        kept: list[dict[str, Any]] = []
        if resume and path.exists():
            content = path.read_bytes()
            kept = self._kept_results(content)
            repaired = b"".join(map(to_bytes, kept))
            if repaired != content:
                replace_file(path, repaired)
        self.done: frozenset[RecordId] = frozenset(line["id"] for line in kept)
        self._numbers = [line_of[line["id"]] for line in kept]
        self._mode = "ab" if resume else "wb"
        self._file: IO[bytes] | None = None

    def __enter__(self) -> ResultFile:
        self._file = self._path.open(self._mode)
        return self

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append results and errors and flush them: they survive the end of this process."""
        assert self._file is not None, "the file is open inside its with block only"
        self._file.write(b"".join(map(to_bytes, lines)))
        self._file.flush()
        self._numbers += map(self._number, lines)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._file is not None
        self._file.close()
        if kind is None and self._numbers != sorted(self._numbers):
            lines = self._path.read_bytes().splitlines(keepends=True)
            ordered = sorted(zip(self._numbers, lines, strict=True))
            replace_file(self._path, b"".join(line for _, line in ordered))

    def _number(self, line: dict[str, Any]) -> int:
        number: int = line["line"] if "error" in line else self._line_of[line["id"]]
        return number

    def _kept_results(self, content: bytes) -> list[dict[str, Any]]:
        """Return the results in ``content`` that stay."""
        whole = content[: content.rfind(b"\n") + 1]
        kept: dict[RecordId, dict[str, Any]] = {}
        for number, line in enumerate(whole.splitlines(), start=1):
            document = _parsed(line)
            if document is None or not ("error" in document or _has_id(document)):
                raise UsageError(
                    str(self._path), f"line {number} is no result of skipdec generate; remove it"
                )
            if "error" in document:
                continue
            if document["id"] not in self._line_of:
                raise UsageError(
                    str(self._path),
                    f"line {number} has id {document['id']!r}, which the input does not have; "
                    "resume with the input that it was made from",
                )
            kept[document["id"]] = document
        return list(kept.values())


def _has_id(document: dict[str, Any]) -> bool:
    return isinstance(document.get("id"), str | int)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
