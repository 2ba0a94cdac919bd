"""The directories of a tuning: its work, its saves, and the publication of its result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...engines.bundle import file_record, replace_file
from ...engines.bundle.place import Place, foreign_directory
from ...engines.documents import read_json, read_object
from ...engines.errors import UsageError
from ...exporter.checkpoint.draft_layer import FACTS_NAME
from .config import TuneConfig

REPORT_NAME = "tuning_report.json"
CURVES_NAME = "tuning_curves.png"
SEAL_NAME = "seal.json"
FREE_OPTIONS = {"resume", "force", "output", "logging_steps", "save_steps"}
"""Fields of TuneConfig that do not affect the model, which a resumed run may change."""

_PREFIX = "checkpoint-"
_OPTIONS_NAME = "options.json"
_PUBLISHED_NAME = "published"
_CONTENTS = {
    "data_digest": "the tokens of the data",
    "start_digest": "the weights of the model",
    "layer_digest": "the weights of the draft layer",
}
# The contents of these are compared, by digest, except validation's, which is only reported on.
_NOT_COMPARED = {"data.path", "model", "start_layer", "validation"}
_LENGTHS = ("epochs", "max_steps")


@dataclass(frozen=True)
class TuningDirectories:
    """Three neighbouring names: the result, a run's saves, and what is being published.

    ``mark`` is the file that identifies a result of this ``kind``.
    """

    output: Path
    mark: str = REPORT_NAME
    kind: str = "a tuned checkpoint"

    @property
    def work(self) -> Path:
        """The directory of an unfinished tuning: its options and Trainer's checkpoints."""
        return self.output.with_name(f".{self.output.name}.tuning")

    @property
    def checkpoints(self) -> Path:
        """Directory of Trainer's checkpoints, ``checkpoint-500`` and so on."""
        return self.work / "checkpoints"

    @property
    def place(self) -> Place:
        """Place of the result."""
        return Place(self.output, self.mark, self.kind)

    def check(self, *, force: bool, resume: bool, reads: Sequence[Path] = ()) -> None:
        """Raise UsageError if the place is taken, or an unfinished run or the data would be lost.

        With ``force``, only a directory that a tuning wrote may be replaced. Leftovers of a run
        that was killed after publishing its result are deleted.
        """
        foreign = foreign_directory(self.work)
        if foreign is None and self._is_published:
            self._forget()
        problems = self.place.problems(force=force, reads=reads)
        if foreign is not None:
            problems.append(f"needs the name {self.work.name}, which {foreign}")
        if not resume and self.last_save() is not None:
            problems.append(
                f"has an unfinished tuning; pass --resume, or delete {self.work} to start over"
            )
        if problems:
            self.place.sweep()
            raise UsageError(str(self.output), *problems)

    def last_save(self) -> Path | None:
        """Return Trainer's newest whole checkpoint; None if there is none.

        A checkpoint is not whole if its writing was interrupted or its files have changed since.
        Raises UsageError if saves were complete once but none is whole any more.
        """
        saves = self._saves()
        whole = next((save for save in saves if _is_whole(save)), None)
        if whole is None and (sealed := [save.name for save in saves if _is_sealed(save)]):
            raise UsageError(
                "--resume",
                f"finds only damaged saves ({', '.join(sealed)}); restore one of them, or delete "
                f"{self.work} to start over, without --resume",
            )
        return whole

    def begin(self, options: Mapping[str, Any], *, resumed: Path | None) -> None:
        """Create the working directory or, when resuming, compare ``options`` with the first run's.

        Saves newer than ``resumed`` are not whole and are deleted. Call this inside
        ``place.locked``. Raises UsageError with every option that differs.
        """
        path = self.work / _OPTIONS_NAME
        if resumed is None:
            # A run that was killed before its first save may have left the directory.
            shutil.rmtree(self.work, ignore_errors=True)
            self.checkpoints.mkdir(parents=True)
            replace_file(path, (json.dumps(options, indent=2) + "\n").encode())
            return
        if problems := list(_differences(self._options(), json.loads(json.dumps(options)))):
            raise UsageError("--resume", *problems, f"or {self._fresh_start}")
        saves = self._saves()
        for save in saves[: saves.index(resumed)]:
            shutil.rmtree(save)

    def began(self) -> datetime:
        """Return when the unfinished run began. Raises UsageError for damaged options."""
        began = self._options().get("began")
        try:
            return datetime.fromisoformat(str(began))
        except ValueError as error:
            problem = f"began is {began!r:.40}, which is no time; {self._fresh_start}"
            raise UsageError(str(self.work / _OPTIONS_NAME), problem) from error

    def abandon(self) -> None:
        """Delete what a failed run can't resume: unfinished saves and, without others, its state.

        On a full disk they would take the space that other programs need.
        """
        saves = self._saves()
        unfinished = [save for save in saves if not _is_sealed(save)]
        can_resume = len(unfinished) < len(saves)
        for path in unfinished if can_resume else [self.work]:
            shutil.rmtree(path, ignore_errors=True)  # errors here must not hide the failure

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
    def _fresh_start(self) -> str:
        return f"delete {self.work} to start over, without --resume"

    def _options(self) -> dict[str, Any]:
        """Return what `begin` recorded."""
        return read_object(self.work / _OPTIONS_NAME, UsageError, remedy=self._fresh_start)

    def _saves(self) -> list[Path]:
        """Return all saves, whole or not, newest first."""
        saves = [path for path in self.checkpoints.glob(f"{_PREFIX}*") if _step(path).isdecimal()]
        return sorted(saves, key=lambda path: int(_step(path)), reverse=True)

    @property
    def _is_published(self) -> bool:
        """True if the run's result, identified by its mark, is in place."""
        published = self.work / _PUBLISHED_NAME
        if not (published.is_file() and (self.output / self.mark).is_file()):
            return False
        return published.read_text() == file_record(self.output, self.mark).sha256

    def _forget(self) -> None:
        """Delete the run's state, the published mark last."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)


def directories_of(config: TuneConfig) -> TuningDirectories:
    """Return the directories of a tuning of a checkpoint or a draft layer."""
    output = config.output.expanduser().absolute()
    if not config.draft_layer:
        return TuningDirectories(output)
    return TuningDirectories(output, FACTS_NAME, "a draft layer")


def is_sharded() -> bool:
    """Return True if accelerate divides the weights among processes (FSDP)."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def num_processes() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def seal_save(save: Path) -> None:
    """Record the hashes of a save's files, which don't change afterwards."""
    replace_file(save / SEAL_NAME, json.dumps(_hashes(save), indent=2).encode() + b"\n")


def _is_sealed(save: Path) -> bool:
    """Return True if a save was written to its end; its files may have changed since."""
    return (save / SEAL_NAME).exists()


def _differences(before: Any, after: Any, name: str = "") -> Iterator[str]:  # noqa: ANN401  (JSON)
    """Yield each field that differs, with fields of nested options one by one."""
    if name in _NOT_COMPARED:
        return
    if isinstance(before, dict) or isinstance(after, dict):
        before, after = before or {}, after or {}
        for key in {**before, **after}:
            inner = f"{name}.{key}" if name else key
            yield from _differences(before.get(key), after.get(key), inner)
    elif before != after and name in _CONTENTS:
        yield f"{_CONTENTS[name]} are not those with which the run began; restore them"
    elif before != after:
        reason = ", from which its learning rates follow" if name in _LENGTHS else ""
        yield f"{name} is {after!r}; the run began with {before!r}{reason}; resume with that"


def _is_whole(save: Path) -> bool:
    try:
        return bool(read_json(save / SEAL_NAME, UsageError) == _hashes(save))
    except (UsageError, OSError):
        return False


def _hashes(save: Path) -> dict[str, str]:
    files = (path for path in sorted(save.rglob("*")) if path.is_file() and path.name != SEAL_NAME)
    names = (path.relative_to(save).as_posix() for path in files)
    return {name: file_record(save, name).sha256 for name in names}


def _step(save: Path) -> str:
    return save.name.removeprefix(_PREFIX)
