"""The saves of an unfinished tuning: sealed once they are whole, checked before one is resumed.

Trainer writes a directory ``checkpoint-500`` file by file and, resuming, goes on without those that
are missing: with a fresh optimizer, say, to other weights. So each save gets a seal behind its last
file, the sizes and hashes of all others; one without it, or that differs from it, is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ...engines.bundle import file_record, replace_file
from ...engines.documents import read_json
from ...engines.errors import UsageError
from ...engines.manifest import FileRecord

SEAL_NAME = "seal.json"
_PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Save:
    """One directory of Trainer's. ``step``: how many steps had been done."""

    path: Path

    @property
    def step(self) -> int:
        """500 of ``checkpoint-500``."""
        return int(self.path.name.removeprefix(_PREFIX))

    @property
    def is_sealed(self) -> bool:
        """Whether it was whole once."""
        return (self.path / SEAL_NAME).is_file()

    def seal(self) -> None:
        """Write down what the save consists of; nothing of it is written afterwards."""
        document = [record.model_dump(mode="json") for record in self._records()]
        content = json.dumps(document, indent=2) + "\n"
        replace_file(self.path / SEAL_NAME, content.encode())

    def damage(self) -> str | None:
        """What is wrong with it, hashing every byte; None: it is what was sealed."""
        if not self.is_sealed:
            return f"has no {SEAL_NAME}: its writing was interrupted"
        try:
            document = read_json(self.path / SEAL_NAME, UsageError, subject=SEAL_NAME)
            expected = {entry["path"]: FileRecord(**entry) for entry in document}
            found = {record.path: record for record in self._records()}
        except UsageError as error:
            return str(error)
        except (TypeError, KeyError, ValidationError):
            return f"{SEAL_NAME} is not what was written"
        except OSError as error:
            return f"can't be read ({error})"
        for path, record in expected.items():
            if path not in found:
                return f"{path} is missing"
            if found[path] != record:
                return f"{path} is not what was written"
        return None

    def _records(self) -> list[FileRecord]:
        """Every file but the seal, by name."""
        paths = sorted(path for path in self.path.rglob("*") if path.is_file())
        names = (path.relative_to(self.path).as_posix() for path in paths)
        return [file_record(self.path, name) for name in names if name != SEAL_NAME]


def saves_in(directory: Path) -> list[Save]:
    """All saves of a run, whole or not, the newest first."""
    saves = (Save(path) for path in directory.glob(f"{_PREFIX}*"))
    numbered = [save for save in saves if save.path.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(numbered, key=lambda save: save.step, reverse=True)


def newest_whole(saves: Sequence[Save]) -> tuple[Save | None, list[str]]:
    """The first of ``saves`` that is not damaged, and what is wrong with those before it."""
    damages: list[str] = []
    for save in saves:
        damage = save.damage()
        if damage is None:
            return save, damages
        damages.append(f"{save.path.name}: {damage}")
    return None, damages
