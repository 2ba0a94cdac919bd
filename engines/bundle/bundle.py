"""A bundle on disk: opened only if whole, changed only by replacing files."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from ..documents import parse_json, read_file
from ..errors import BundleError, UsageError
from ..manifest import FileRecord, Manifest, json_digest
from .ownership import is_at, open_own
from .place import (
    MANIFEST_NAME,
    SCHEDULE_NAME,
    WriterLock,
    bundle_place,
    partial_path,
    sync_directory,
)

EXPORT_AGAIN = "export the model again"


@dataclass(frozen=True)
class EngineBundle:
    """A directory of engines, as ``manifest.json`` describes it.

    ``schedule_document`` is the JSON object of the bundle's ExitSchedule, digest checked.
    ``path`` is absolute, symbolic links resolved.
    """

    path: Path
    manifest: Manifest
    schedule_document: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path, *, verify: Literal["graphs", "full"] = "graphs") -> Self:
        """Open the bundle at ``path`` after checking that it is whole.

        Checked: both digests, all sizes, the hashes of graphs and tokenizer, and with
        ``verify="full"`` those of the weights. A swap of ``export --force`` that was interrupted
        is repaired first. Raises BundleError naming every file that is wrong.
        """
        if verify not in ("graphs", "full"):
            raise UsageError("verify", f"is {verify!r}; allowed: 'graphs', 'full'")
        place = bundle_place(Path(path))
        root = place.target
        if place.is_interrupted:
            with WriterLock(root):
                place.repair()
        _require_bundle(root)
        manifest = read_manifest(root)
        bundle = cls(root, manifest, read_schedule(root))
        if problems := bundle._file_problems(full=verify == "full"):
            raise BundleError(str(root), *problems, f"the bundle is damaged; {EXPORT_AGAIN}")
        return bundle

    def check(self, *, full: bool) -> list[str]:
        """Return one text per file that is not as the manifest says, the file's name first.

        ``full`` hashes the weights too. Reads manifest and schedule again: empty means that the
        directory still is what was opened, or that only its schedule was replaced.
        """
        problems = []
        try:
            if read_manifest(self.path).digest != self.manifest.digest:
                problems.append(f"{MANIFEST_NAME}: is not the one that was opened")
        except BundleError as error:
            problems += [f"{MANIFEST_NAME}: {problem}" for problem in error.problems]
        try:
            read_schedule(self.path)
        except BundleError as error:
            problems += [f"{SCHEDULE_NAME}: {problem}" for problem in error.problems]
        return problems + self._file_problems(full=full)

    def file(self, relative: str) -> Path:
        """Return the absolute path of a file that the manifest lists."""
        if all(record.path != relative for record in self.manifest.files):
            raise BundleError(str(self.path), f"lists no file {relative!r} in {MANIFEST_NAME}")
        return self.path / relative

    def _file_problems(self, *, full: bool) -> list[str]:
        engines = (*self.manifest.all_engines, *self.manifest.canonical)
        weights = {path for engine in engines for path in engine.weights}
        return [
            f"{record.path}: {problem}"
            for record in self.manifest.files
            if (problem := _record_problem(self.path, record, full or record.path not in weights))
        ]


def file_record(directory: Path, relative: str) -> FileRecord:
    """Describe the file ``directory / relative``: its size in bytes and its SHA-256."""
    path = directory / relative
    return FileRecord(path=relative, size=path.stat().st_size, sha256=_sha256(path))


def schedule_text(document: dict[str, Any]) -> str:
    """Return the text of schedule.json for an ExitSchedule's JSON object."""
    content = {"digest": json_digest(document), "schedule": document}
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def write_schedule(path: Path, document: dict[str, Any]) -> None:
    """Replace the schedule of the bundle directory ``path`` by ``document``, in one step.

    ``document`` is an ExitSchedule's JSON object; the caller has checked that it fits the model.
    A reader sees the old file or the new one, never a part, and no engine is touched.
    """
    replace_file(path / SCHEDULE_NAME, schedule_text(document).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` to a new file and rename it to ``path``: what is mapped stays intact.

    The new file is ``.<name>.new`` each time, so that the next write takes what a kill leaves of
    it. One process writes at a time, others wait. Raises BundleError as ``open_own`` does.
    """
    temporary = path.with_name(f".{path.name}.new")
    with _locked(temporary) as file:
        try:
            file.truncate()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


def _locked(path: Path) -> BinaryIO:
    """Open the file ``path``, made if need be, as the only process that does."""
    while True:
        file = os.fdopen(open_own(path), "r+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_at(path, file.fileno()):
            return file
        file.close()  # another process has renamed it


def read_manifest(root: Path) -> Manifest:
    """Read ``root``'s manifest.json; BundleError unless it is, byte for byte, what was written."""
    path = root / MANIFEST_NAME
    content = read_file(path, BundleError, remedy=EXPORT_AGAIN)
    manifest = Manifest.from_json(content, str(path))
    if content != manifest.to_json().encode():
        raise BundleError(str(path), f"was reformatted or damaged; {EXPORT_AGAIN}")
    return manifest


def read_schedule(root: Path) -> dict[str, Any]:
    """Read ``root``'s schedule.json and return its ExitSchedule JSON object, digest checked."""
    path = root / SCHEDULE_NAME
    remedy = "write it with 'skipdec schedule set'"
    if not path.exists():
        raise BundleError(str(path), f"is missing; {remedy}")
    content = read_file(path, BundleError, remedy=remedy)
    document = parse_json(content, BundleError, subject=str(path), remedy=remedy)
    schedule = document.get("schedule") if isinstance(document, dict) else None
    if not isinstance(schedule, dict):
        raise BundleError(str(path), f"has no object under the key 'schedule'; {remedy}")
    if content != schedule_text(schedule).encode():
        raise BundleError(
            str(path), f"does not match its digest: it was edited or damaged; {remedy}"
        )
    return schedule


def _require_bundle(root: Path) -> None:
    """Raise BundleError, saying what lies there instead, unless ``root`` holds a manifest."""
    if (root / MANIFEST_NAME).is_file():
        return
    unfinished = root if root.name.endswith(".partial") else partial_path(root)
    if unfinished.is_dir() and (unfinished == root or not root.exists()):
        problem = f"is an unfinished export ({unfinished.name}); run the export command again"
    elif not root.exists():
        problem = "does not exist; allowed: a directory made by 'skipdec export'"
    elif (root / "config.json").is_file():
        problem = f"is a checkpoint, not a bundle; run: skipdec export {root}"
    else:
        problem = f"is not a bundle: it has no {MANIFEST_NAME}; make one with 'skipdec export'"
    raise BundleError(str(root), problem)


def _record_problem(root: Path, record: FileRecord, hashed: bool) -> str | None:
    """Say how the file differs from its record, or None."""
    path = root / record.path
    if not path.resolve().is_relative_to(root):
        return f"is a link to {path.resolve()}, outside the bundle; copy the file into the bundle"
    if not path.is_file():
        return "is missing" if not path.exists() else "is not a regular file"
    size = path.stat().st_size
    if size != record.size:
        return f"has {size:,} bytes; expected {record.size:,}"
    if hashed and (digest := _sha256(path)) != record.sha256:
        return f"has SHA-256 {digest[:12]}…; expected {record.sha256[:12]}…"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
