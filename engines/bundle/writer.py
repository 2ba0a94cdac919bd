"""Writes a bundle where nobody sees it, and publishes it in one step."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ..errors import BundleError, UsageError
from ..manifest import Manifest
from .bundle import EngineBundle, replace_file, schedule_text
from .place import (
    MANIFEST_NAME,
    SCHEDULE_NAME,
    TOKENIZER_NAME,
    BundleLock,
    is_empty_directory,
    partial_path,
    place_problems,
    remove_tree,
    repair,
    sync_directory,
    sync_file,
    take_place,
)


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError if no bundle may be written to ``target``; see ``place_problems``."""
    target = target.resolve()
    if problems := place_problems(target, mark=MANIFEST_NAME, kind="a bundle", force=force):
        raise UsageError(str(target), *problems)


class BundleWriter:
    """Builds a bundle in ``.<name>.partial`` beside ``target`` and publishes it by rename.

    A context manager. Entering it takes the lock (BundleError if another process writes the same
    bundle), repairs an interrupted swap, and makes ``directory``, empty unless ``resume`` finds one
    from an interrupted run. Leaving it without ``publish`` keeps ``directory`` for the next run.

        with BundleWriter(target, force=False, resume=True) as writer:
            ...                                     # write engines below writer.directory
            writer.stage(manifest, schedule, tokenizer)     # whole, but not visible yet
            ...                                     # verify writer.directory
            writer.publish(manifest, schedule, tokenizer)
    """

    def __init__(self, target: Path, *, force: bool = False, resume: bool = True) -> None:
        self.target = target.resolve()
        self.directory = partial_path(self.target)
        self._force = force
        self._resume = resume
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock, repair, and make the directory. Raises UsageError as ``check_target`` does."""
        check_target(self.target, force=self._force)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._stack.enter_context(BundleLock(self.target))
        with ExitStack() as undo:
            undo.push(self._stack)
            repair(self.target)
            check_target(self.target, force=self._force)
            if not self._resume:
                remove_tree(self.directory)
            self.directory.mkdir(exist_ok=True)
            # Without its manifest an interrupted run's directory can't be taken for a whole bundle.
            (self.directory / MANIFEST_NAME).unlink(missing_ok=True)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; an unpublished directory stays for the next run."""
        self._stack.close()

    def stage(
        self, manifest: Manifest, schedule_document: dict[str, Any], tokenizer: bytes | None
    ) -> EngineBundle:
        """Write manifest, schedule and tokenizer, so that ``directory`` opens as a bundle.

        The manifest lists every other file, the tokenizer's record included; its digest is
        computed here. Returns the opened, still unpublished bundle; BundleError if a file is
        missing or is not what the manifest says (weights by size only).
        """
        if (manifest.tokenizer is None) != (tokenizer is None):
            raise BundleError(str(self.target), "the manifest and the writer differ on a tokenizer")
        if tokenizer is not None:
            replace_file(self.directory / TOKENIZER_NAME, tokenizer)
        replace_file(self.directory / SCHEDULE_NAME, schedule_text(schedule_document).encode())
        replace_file(self.directory / MANIFEST_NAME, manifest.with_digest().to_json().encode())
        return EngineBundle.open(self.directory)

    def publish(
        self, manifest: Manifest, schedule_document: dict[str, Any], tokenizer: bytes | None
    ) -> EngineBundle:
        """Stage, delete what the manifest does not list, make all durable, take the target's place.

        Returns the published bundle. Nothing is visible at ``target`` before the last step.
        """
        self.stage(manifest, schedule_document, tokenizer)
        self._remove_strays({record.path for record in manifest.files})
        self._sync()
        if self.target.exists() and not is_empty_directory(self.target):
            check_target(self.target, force=self._force)
        take_place(self.directory, self.target)
        return EngineBundle.open(self.target)

    def _remove_strays(self, listed: set[str]) -> None:
        """Delete journals, temporary files and whatever else is not part of the bundle."""
        keep = listed | {MANIFEST_NAME, SCHEDULE_NAME}
        for path in sorted(self.directory.rglob("*"), reverse=True):  # children before parents
            if path.is_dir() and not path.is_symlink():
                if is_empty_directory(path):
                    path.rmdir()
            elif path.relative_to(self.directory).as_posix() not in keep:
                path.unlink()

    def _sync(self) -> None:
        for path in self.directory.rglob("*"):
            (sync_directory if path.is_dir() else sync_file)(path)
        sync_directory(self.directory)
