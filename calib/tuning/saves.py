"""The saves of an unfinished tuning: sealed once complete, checked before resuming.

Trainer writes a directory ``checkpoint-500`` file by file. On resuming it ignores missing files, so
that a fresh optimizer, for example, leads to other weights. Each save therefore gets a seal after
its last file: the sizes and hashes of all others. A save without a seal, or that differs from it,
is damaged.
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
    """One checkpoint directory of Trainer's."""

    path: Path

    @property
    def step(self) -> int:
        """Steps done: 500 for ``checkpoint-500``."""
        return int(self.path.name.removeprefix(_PREFIX))

    @property
    def is_sealed(self) -> bool:
        """True if the save was completed."""
        return (self.path / SEAL_NAME).is_file()

    def seal(self) -> None:
        """Record sizes and hashes of the save, to which nothing is written afterwards."""
        document = [record.model_dump(mode="json") for record in self._records()]
        content = json.dumps(document, indent=2) + "\n"
        replace_file(self.path / SEAL_NAME, content.encode())

    def damage(self) -> str | None:
        """Return the damage, hashing every byte; None if the save equals its seal."""
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
        """Return records of all files but the seal, by name."""
        paths = sorted(path for path in self.path.rglob("*") if path.is_file())
        names = (path.relative_to(self.path).as_posix() for path in paths)
        return [file_record(self.path, name) for name in names if name != SEAL_NAME]


def saves_in(directory: Path) -> list[Save]:
    """Return all saves of a run, damaged or not, newest first."""
    saves = (Save(path) for path in directory.glob(f"{_PREFIX}*"))
    numbered = [save for save in saves if save.path.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(numbered, key=lambda save: save.step, reverse=True)


def newest_whole(saves: Sequence[Save]) -> tuple[Save | None, list[str]]:
    """Return the first undamaged save, and the damage of those before it."""
    damages: list[str] = []
    for save in saves:
        damage = save.damage()
        if damage is None:
            return save, damages
        damages.append(f"{save.path.name}: {damage}")
    return None, damages
