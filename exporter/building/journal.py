"""What an interrupted run had finished, and whether it still is what is wanted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..engines.bundle import file_record
from ..engines.manifest import FileRecord

JOURNAL_NAME = "journal.jsonl"


@dataclass(frozen=True)
class Finished:
    """A piece of work: the files it left, and what else is known of it, a JSON object."""

    facts: dict[str, Any]
    files: tuple[FileRecord, ...]


class Journal:
    """One line per finished piece of work in the directory where a bundle is being built.

    A line holds the work's content key (a hash of all that its bytes follow from) and its files'
    sizes and hashes. It is on disk before ``record`` returns; a line cut short by a kill counts as
    absent. Publishing the bundle deletes the journal. Several threads may record at once.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / JOURNAL_NAME
        self._entries = dict(self._read())
        self._lock = threading.Lock()

    def finished(self, key: str) -> Finished | None:
        """What is recorded under ``key``, if its files still have the recorded content."""
        finished = self._entries.get(key)
        if finished is None or not all(map(self._is_intact, finished.files)):
            return None
        return finished

    def record(self, key: str, finished: Finished) -> None:
        """Note that ``finished`` is on disk."""
        document = {
            "key": key,
            "facts": finished.facts,
            "files": [record.model_dump(mode="json") for record in finished.files],
        }
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())
            self._entries[key] = finished

    def _read(self) -> Iterator[tuple[str, Finished]]:
        if not self._path.is_file():
            return
        for line in self._path.read_text(errors="replace").splitlines():
            try:
                document = json.loads(line)
                files = tuple(FileRecord.model_validate(item) for item in document["files"])
                yield str(document["key"]), Finished(dict(document["facts"]), files)
            except (ValueError, KeyError, TypeError, ValidationError):
                continue  # cut short by a kill: the work is done again

    def _is_intact(self, record: FileRecord) -> bool:
        path = self._directory / record.path
        return (
            path.is_file()
            and path.stat().st_size == record.size
            and file_record(self._directory, record.path) == record
        )
