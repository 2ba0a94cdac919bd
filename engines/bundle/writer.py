"""A writer that builds a bundle out of sight and publishes it atomically."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ..manifest import Manifest
from .bundle import EngineBundle
from .files import replace_file, write_schedule
from .place import (
    CARD_NAME,
    MANIFEST_NAME,
    SCHEDULE_NAME,
    bundle_place,
    is_empty_directory,
    make_own_directory,
)


class BundleWriter:
    """Builds a bundle in ``.<name>.partial`` beside ``target`` and publishes it by rename.

    A context manager: entering takes the lock (BundleError if another process holds it), repairs an
    interrupted swap, and makes ``directory``, empty unless ``resume`` finds one from an interrupted
    run. Write the engines there, ``stage`` to verify the result before it is visible, then
    ``publish``. Leaving without ``publish`` keeps the directory for the next run.
    """

    def __init__(self, target: Path, *, force: bool = False, resume: bool = True) -> None:
        self._place = bundle_place(target)
        self.target = self._place.target
        self.directory = self._place.partial
        self._force = force
        self._resume = resume
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock, repair, and make the directory. Raises UsageError as `Place.check` does."""
        self._stack.enter_context(self._place.locked(force=self._force))
        with ExitStack() as undo:
            undo.push(self._stack)
            if not self._resume:
                self._place.delete(self.directory)
            make_own_directory(self.directory)
            # Without a manifest, an interrupted run's directory can't pass for a complete bundle.
            (self.directory / MANIFEST_NAME).unlink(missing_ok=True)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; an unpublished directory stays for the next run."""
        self._stack.close()

    def stage(
        self,
        manifest: Manifest,
        schedule: Mapping[str, Any],
        texts: Mapping[str, bytes],
    ) -> EngineBundle:
        """Write manifest, schedule and ``texts``, by name; return the unpublished bundle.

        ``schedule`` is what ``write_schedule`` takes. The manifest lists every other file; its
        digest is computed here. Raises BundleError if a file is missing or differs from the
        manifest (weights by size only).
        """
        for name, content in texts.items():
            replace_file(self.directory / name, content)
        write_schedule(self.directory, schedule)
        replace_file(self.directory / MANIFEST_NAME, manifest.with_digest().to_json().encode())
        return EngineBundle.open(self.directory)

    def publish(
        self,
        manifest: Manifest,
        schedule: Mapping[str, Any],
        texts: Mapping[str, bytes],
    ) -> EngineBundle:
        """Stage, delete unlisted files, then replace the target; return the published bundle."""
        self.stage(manifest, schedule, texts)
        self._place.check(force=self._force)
        self._remove_strays({record.path for record in manifest.files})
        self._place.take(self.directory)
        return EngineBundle.open(self.target)

    def _remove_strays(self, listed: set[str]) -> None:
        """Delete journals, temporary files and everything else that is not part of the bundle."""
        keep = listed | {MANIFEST_NAME, SCHEDULE_NAME, CARD_NAME}
        for path in sorted(self.directory.rglob("*"), reverse=True):  # children before parents
            if path.is_dir() and not path.is_symlink():
                if is_empty_directory(path):
                    path.rmdir()
            elif path.relative_to(self.directory).as_posix() not in keep:
                path.unlink()
