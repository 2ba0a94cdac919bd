"""Where a tuning works, and how its result takes its place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engines.bundle.place import Place
from ...engines.errors import UsageError

REPORT_NAME = "tuning_report.json"
CURVES_NAME = "tuning_curves.png"
FREE_OPTIONS = {"resume", "force", "output", "logging_steps", "save_steps"}
"""Fields of TuneConfig that do not change a model: a run that resumes another may have its own."""


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

        With ``force`` a directory may be replaced that a tuning wrote, never anything else.
        """
        problems = self.place.problems(force=force)
        unfinished = self.last_checkpoint() is not None
        if unfinished and not resume:
            problems.append(
                f"was being tuned before; go on with --resume, or delete {self.work} to start anew"
            )
        if resume and not unfinished:
            problems.append(f"has nothing to resume: {self.checkpoints} holds no checkpoint")
        if problems:
            raise UsageError(str(self.output), *problems)

    def last_checkpoint(self) -> Path | None:
        """Trainer's newest checkpoint; None where there is none."""
        numbered = {
            int(path.name.removeprefix("checkpoint-")): path
            for path in self.checkpoints.glob("checkpoint-*")
            if (path / "trainer_state.json").is_file()
        }
        return numbered[max(numbered)] if numbered else None

    def begin(self, options: Mapping[str, Any], *, resume: bool) -> None:
        """Make the working directory; on resuming, hold ``options`` against those of the start.

        Raises UsageError with every option that differs.
        """
        path = self.work / "options.json"
        if resume:
            before = json.loads(path.read_text())
            after = json.loads(json.dumps(options))
            problems = [
                f"{name} is {after.get(name)!r}; the run began with {before.get(name)!r}, resume "
                "with that"
                for name in {**before, **after}
                if before.get(name) != after.get(name)
            ]
            if problems:
                raise UsageError("--resume", *problems)
            return
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(options, indent=2) + "\n")

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
        self.place.take(self.place.partial)
        shutil.rmtree(self.work)
