"""The directories of a tuning: where it works, its saves, and how its result takes its place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...engines.bundle import file_record, replace_file
from ...engines.bundle.place import Place, foreign_directory
from ...engines.documents import read_json
from ...engines.errors import UsageError
from ...engines.manifest import FileRecord
from .config import TuneConfig

REPORT_NAME = "tuning_report.json"
DRAFT_LAYER_NAME = "draft_layer.json"
CURVES_NAME = "tuning_curves.png"
SEAL_NAME = "seal.json"
FREE_OPTIONS = {"resume", "force", "output", "logging_steps", "save_steps"}
"""Fields of TuneConfig that do not affect the model: a resumed run may change them."""

_PREFIX = "checkpoint-"
_OPTIONS_NAME = "options.json"
_PUBLISHED_NAME = "published"


@dataclass(frozen=True)
class Resumed:
    """The save from which a run continues. ``warnings`` name damaged later saves for people."""

    save: Save
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TuningDirectories:
    """Three neighbouring names: the result, a run's saves, and what is being published.

    ``mark`` is the file by which a result of this ``kind`` is recognised.
    """

    output: Path
    mark: str = REPORT_NAME
    kind: str = "a tuned checkpoint"

    @property
    def work(self) -> Path:
        """State of an unfinished tuning: its options and Trainer's checkpoints."""
        return self.output.with_name(f".{self.output.name}.tuning")

    @property
    def checkpoints(self) -> Path:
        """Directory of Trainer's checkpoints, ``checkpoint-500`` and so on."""
        return self.work / "checkpoints"

    @property
    def place(self) -> Place:
        """Place of the result."""
        return Place(self.output, self.mark, self.kind)

    def check(self, *, force: bool, resume: bool) -> None:
        """Raise UsageError if no result may be put there, or an unfinished run would be lost.

        With ``force``, only a directory that a tuning wrote may be replaced. Leftovers of a run
        that was killed after publishing its result are deleted.
        """
        foreign = foreign_directory(self.work)
        if foreign is None and self._is_published:
            self._forget()
        problems = self.place.problems(force=force)
        if foreign is not None:
            problems.append(f"needs the name {self.work.name}, which {foreign}")
        if not resume and self.last_checkpoint() is not None:
            problems.append(
                f"has an unfinished tuning; pass --resume, or delete {self.work} to start over"
            )
        if problems:
            self.place.sweep()
            raise UsageError(str(self.output), *problems)

    def last_checkpoint(self) -> Path | None:
        """Trainer's newest completed checkpoint; None if there is none."""
        sealed = (save.path for save in saves_in(self.checkpoints) if save.is_sealed)
        return next(sealed, None)

    def resumed(self) -> Resumed | None:
        """Return the newest undamaged save; hashes every byte of it and of damaged newer ones.

        None if there is no save, as when a run was interrupted before its first step ended. Raises
        UsageError with the damage of each save if none is left.
        """
        damages: list[str] = []
        for save in saves_in(self.checkpoints):
            if (damage := save.damage()) is None:
                warnings = [f"{each}: it is deleted" for each in damages]
                if damages:
                    warnings.append(f"resumed at step {save.step}")
                return Resumed(save, tuple(warnings))
            damages.append(f"{save.path.name}: {damage}")
        if damages:
            advice = f"every save is damaged; delete {self.work} to start over, without --resume"
            raise UsageError(str(self.checkpoints), *damages, advice)
        return None

    def begin(self, options: Mapping[str, Any], *, resumed: Resumed | None) -> None:
        """Create the working directory; on resuming, compare ``options`` with the first run's.

        Saves newer than ``resumed`` are damaged and get deleted. Call this inside ``place.locked``.
        Raises UsageError with every option that differs.
        """
        path = self.work / _OPTIONS_NAME
        if resumed is None:
            # A run that was killed before its first save may have left this.
            shutil.rmtree(self.work, ignore_errors=True)
            self.checkpoints.mkdir(parents=True)
            replace_file(path, (json.dumps(options, indent=2) + "\n").encode())
            return
        advice = f"delete {self.work} to start over, without --resume"
        before = read_json(path, UsageError, remedy=advice)
        if not isinstance(before, dict):
            raise UsageError(str(path), f"contains no options; {advice}")
        after = json.loads(json.dumps(options))
        problems = [
            f"{name} is {after.get(name)!r}; the run began with {before.get(name)!r}, resume "
            "with that"
            for name in {**before, **after}
            if before.get(name) != after.get(name)
        ]
        if problems:
            raise UsageError("--resume", *problems)
        for save in saves_in(self.checkpoints):
            if save.step > resumed.save.step:
                shutil.rmtree(save.path)

    def abandon(self) -> None:
        """Delete the state of a failed run that saved nothing and so can't be resumed."""
        if self.last_checkpoint() is None:
            shutil.rmtree(self.work, ignore_errors=True)  # errors here must not hide the failure

    def stage(self) -> Path:
        """Return an empty directory for the result, beside its place."""
        self.place.delete(self.place.partial)
        self.place.partial.mkdir(parents=True)
        return self.place.partial

    def publish(self) -> None:
        """Publish the staged result atomically and delete the run's state.

        Call this inside ``place.locked``.
        """
        digest = file_record(self.place.partial, self.mark).sha256
        replace_file(self.work / _PUBLISHED_NAME, digest.encode())
        self.place.take(self.place.partial)
        self._forget()

    @property
    def _is_published(self) -> bool:
        """True if the run's result, recognised by its mark, is in place."""
        published = self.work / _PUBLISHED_NAME
        if not (published.is_file() and (self.output / self.mark).is_file()):
            return False
        return published.read_text() == file_record(self.output, self.mark).sha256

    def _forget(self) -> None:
        """Delete the run's state, the published mark last."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)


def directories_of(config: TuneConfig) -> TuningDirectories:
    """Return the directories of a tuning, whose result is a checkpoint or a draft layer."""
    output = config.output.expanduser().absolute()
    if config.draft_layer is None:
        return TuningDirectories(output)
    return TuningDirectories(output, DRAFT_LAYER_NAME, "a draft layer")


def num_processes() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


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
