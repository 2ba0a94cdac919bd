"""Which engines an interrupted export had finished, and whether they are still what is wanted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from ..engines.bundle import file_record
from ..engines.manifest import EngineSpec, FileRecord
from .build import BuiltEngine

JOURNAL_NAME = "journal.jsonl"


class Journal:
    """One line per finished engine in the directory where a bundle is being built.

    A line holds the engine's content key (a hash of all that its bytes follow from) and its files'
    sizes and hashes. It is on disk before ``record`` returns; a line cut short by a kill counts as
    absent. Publishing the bundle deletes the journal.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / JOURNAL_NAME
        self._entries = dict(self._read())

    def finished(self, key: str) -> BuiltEngine | None:
        """The engine recorded under ``key``, if its files still have the recorded content."""
        built = self._entries.get(key)
        if built is None or not all(map(self._is_intact, built.files)):
            return None
        return built

    def record(self, key: str, built: BuiltEngine) -> None:
        """Note that ``built`` is on disk."""
        document = {
            "key": key,
            "spec": built.spec.model_dump(mode="json"),
            "files": [record.model_dump(mode="json") for record in built.files],
        }
        with self._path.open("a") as file:
            file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._entries[key] = built

    def _read(self) -> Iterator[tuple[str, BuiltEngine]]:
        if not self._path.is_file():
            return
        for line in self._path.read_text(errors="replace").splitlines():
            try:
                document = json.loads(line)
                files = tuple(FileRecord.model_validate(item) for item in document["files"])
                spec = EngineSpec.model_validate(document["spec"])
                yield str(document["key"]), BuiltEngine(spec, files)
            except (ValueError, KeyError, TypeError, ValidationError):
                continue  # cut short by a kill: the engine is built again

    def _is_intact(self, record: FileRecord) -> bool:
        path = self._directory / record.path
        return (
            path.is_file()
            and path.stat().st_size == record.size
            and file_record(self._directory, record.path) == record
        )
