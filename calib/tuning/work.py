"""Where a tuning works, and how its result takes its place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engines.bundle import file_record, replace_file
from ...engines.bundle.ownership import foreign_directory
from ...engines.bundle.place import Place
from ...engines.documents import read_json
from ...engines.errors import UsageError
from .saves import Save, newest_whole, saves_in

REPORT_NAME = "tuning_report.json"
CURVES_NAME = "tuning_curves.png"
FREE_OPTIONS = {"resume", "force", "output", "logging_steps", "save_steps"}
"""Fields of TuneConfig that do not change a model: a run that resumes another may have its own."""

_OPTIONS_NAME = "options.json"
_PUBLISHED_NAME = "published"


@dataclass(frozen=True)
class Resumed:
    """The save that a run goes on from. ``warnings``: which later ones are damaged, for people."""

    save: Save
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TuningDirectories:
    """Three names beside each other: the result, what a run saves, and what is being published."""

    output: Path

    @property
    def work(self) -> Path:
        """The state of an unfinished tuning: its options and Trainer's checkpoints."""
        return self.output.with_name(f".{self.output.name}.tuning")

    @property
    def checkpoints(self) -> Path:
        """Trainer's checkpoints, ``checkpoint-500`` and so on."""
        return self.work / "checkpoints"

    @property
    def place(self) -> Place:
        """The result's own."""
        return Place(self.output, REPORT_NAME, "a tuned checkpoint")

    def check(self, *, force: bool, resume: bool) -> None:
        """Raise UsageError if no result may be put there, or an unfinished run would be lost.

        With ``force`` a directory may be replaced that a tuning wrote, never anything else. What
        was left by a run that was killed after its result had taken its place is deleted.
        """
        foreign = foreign_directory(self.work)
        if foreign is None and self._is_published:
            self._forget()
        problems = self.place.problems(force=force)
        if foreign is not None:
            problems.append(f"needs the name {self.work.name}, which {foreign}")
        if not resume and self.last_checkpoint() is not None:
            problems.append(
                f"was being tuned before; go on with --resume, or delete {self.work} to start anew"
            )
        if problems:
            self.place.sweep()
            raise UsageError(str(self.output), *problems)

    def last_checkpoint(self) -> Path | None:
        """Trainer's newest checkpoint that was written to its end; None where there is none."""
        sealed = (save.path for save in saves_in(self.checkpoints) if save.is_sealed)
        return next(sealed, None)

    def resumed(self) -> Resumed:
        """The newest save that is whole: every byte of it is hashed, and of damaged newer ones.

        Raises UsageError, saying what is wrong with each, where there is none.
        """
        saves = saves_in(self.checkpoints)
        if not saves:
            raise UsageError(
                str(self.output), f"has nothing to resume: {self.checkpoints} holds no checkpoint"
            )
        save, damages = newest_whole(saves)
        if save is None:
            advice = f"no save is whole; delete {self.work} to start anew, without --resume"
            raise UsageError(str(self.checkpoints), *damages, advice)
        warnings = (f"{damage}: it is deleted" for damage in damages)
        return Resumed(save, (*warnings, *([f"resumed at step {save.step}"] if damages else [])))

    def begin(self, options: Mapping[str, Any], *, resumed: Resumed | None) -> None:
        """Make the working directory; on resuming, hold ``options`` against those of the start.

        Saves that are newer than ``resumed`` are damaged, and deleted. The caller is in the block
        of ``place.locked``. Raises UsageError with every option that differs.
        """
        path = self.work / _OPTIONS_NAME
        if resumed is None:
            shutil.rmtree(self.work, ignore_errors=True)  # of a run that was killed before a save
            self.checkpoints.mkdir(parents=True)
            replace_file(path, (json.dumps(options, indent=2) + "\n").encode())
            return
        advice = f"delete {self.work} to start anew, without --resume"
        before = read_json(path, UsageError, remedy=advice)
        if not isinstance(before, dict):
            raise UsageError(str(path), f"holds no options; {advice}")
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
        """After a failure: forget a run that saved nothing, which can't be resumed."""
        if self.last_checkpoint() is None:
            shutil.rmtree(self.work, ignore_errors=True)  # the failure itself is what matters

    def stage(self) -> Path:
        """An empty directory for the result, beside its place."""
        self.place.delete(self.place.partial)
        self.place.partial.mkdir(parents=True)
        return self.place.partial

    def publish(self) -> None:
        """Put what was staged in its place in one step, and forget the run's state.

        The caller is in the block of ``place.locked``.
        """
        digest = file_record(self.place.partial, REPORT_NAME).sha256
        replace_file(self.work / _PUBLISHED_NAME, digest.encode())
        self.place.take(self.place.partial)
        self._forget()

    @property
    def _is_published(self) -> bool:
        """Whether the run's result has taken its place: its report is there, times included."""
        published = self.work / _PUBLISHED_NAME
        if not (published.is_file() and (self.output / REPORT_NAME).is_file()):
            return False
        return published.read_text() == file_record(self.output, REPORT_NAME).sha256

    def _forget(self) -> None:
        """Delete the run's state, what says that it is published last."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)


def num_processes() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))
