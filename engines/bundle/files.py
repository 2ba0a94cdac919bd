"""The files of a bundle: their directory, records, manifest, schedule and draft."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from ..documents import (
    canonical_text,
    naming_file,
    open_regular,
    parse_json,
    read_file,
    sealed_text,
)
from ..errors import BundleError, UsageError
from ..manifest import EngineSpec, FileRecord, Manifest
from .place import (
    MANIFEST_NAME,
    NOT_STDOUT,
    SCHEDULE_NAME,
    is_at,
    open_own,
    partial_path,
    sync,
)

_BESIDE = "..run.json..new"  # what the longest name of a file beside a result adds to the result's
_DESCRIPTORS = Path("/proc/self/fd")
EXPORT_AGAIN = "export the model again"
_SCHEDULE_KEYS = frozenset({"digest", "schedule"})


class HeldDirectory:
    """The directory at ``path`` when this object was made, even if the path is replaced later.

    ``locate`` returns paths through a file descriptor, valid while this object lives. They still
    find the files if the directory is renamed, but not if it is deleted. Raises BundleError if
    there is no readable directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise BundleError(str(path), f"can't be opened ({error.strerror})") from error
        closing = weakref.finalize(self, os.close, descriptor)
        closing.atexit = False  # a daemon thread may still load from it
        self._opened = os.fstat(descriptor)
        self._descriptor = descriptor
        held = _DESCRIPTORS / str(descriptor)
        self._root = held if held.exists() else path  # without /proc the path itself must do

    def locate(self, relative: str) -> Path:
        """Return the path by which this process reads the file ``relative``."""
        return self._root / relative

    def leaves(self, relative: str) -> Path | None:
        """Return the target of ``relative`` if symbolic links lead out of the directory."""
        root, path = (Path(os.path.realpath(self._root / part)) for part in ("", relative))
        return None if path.is_relative_to(root) else path

    def was_touched(self) -> bool:
        """Return True if the directory was renamed, replaced, deleted or changed since."""
        now = os.fstat(self._descriptor)
        try:
            in_place = os.path.samestat(now, self.path.stat())
        except OSError:
            in_place = False
        return not in_place or now.st_ctime_ns != self._opened.st_ctime_ns


def file_record(directory: Path, relative: str) -> FileRecord:
    """Describe the file ``directory / relative``: its size in bytes and its SHA-256."""
    path = directory / relative
    with path.open("rb") as file:
        return FileRecord(path=relative, size=path.stat().st_size, sha256=_sha256(file))


def write_schedule(path: Path, schedule: Mapping[str, Any]) -> None:
    """Replace the schedule of the bundle ``path`` atomically; no engine changes.

    ``schedule`` is the JSON object of an ExitSchedule, checked by the caller.
    """
    replace_file(path / SCHEDULE_NAME, sealed_text({"schedule": schedule}).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` to a new file and rename it to ``path``: existing mappings stay intact.

    The temporary file is always ``.<name>.new``, so the next write reuses one left by a killed
    writer. Other writers wait. Raises BundleError as ``open_own`` does.
    """
    temporary = path.with_name(f".{path.name}.new")
    with naming_file(path), _locked(temporary) as file:
        try:
            file.truncate()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync(path.parent)


def place_problems(path: Path, *, force: bool, data: Path | None = None) -> list[str]:
    """Return the reasons why `replace_file` may not write ``path``.

    ``force`` replaces a file, but never ``data``, from which it would be made.
    """
    problems, parent = [], path.absolute().parent
    if path.name == "-":
        problems.append(NOT_STDOUT)
    if not parent.is_dir():
        return [*problems, f"can't be written: {parent} is not a directory; make it"]
    if not os.access(parent, os.W_OK | os.X_OK):
        problems.append(f"can't be written: no permission to create files in {parent}")
    longest = os.pathconf(parent, "PC_NAME_MAX") - len(_BESIDE)
    if (length := len(os.fsencode(path.name))) > longest:
        problems.append(f"has a name of {length} bytes; allowed: {longest}")
    elif path.exists() and not path.is_file():
        problems.append("is not a regular file; name one")
    elif path.exists() and not force:
        problems.append("exists; pass --force to replace it, or choose another name")
    elif data is not None and path.exists() and data.exists() and path.samefile(data):
        problems.append("is also the data; name another file")
    return problems


def require_place(path: Path, *, force: bool, data: Path | None = None) -> None:
    """Raise UsageError with all `place_problems`, if there are any."""
    if problems := place_problems(path, force=force, data=data):
        raise UsageError(str(path), *problems)


def _locked(path: Path) -> BinaryIO:
    """Open the file ``path``, creating it if necessary, under an exclusive lock."""
    while True:
        file = os.fdopen(open_own(path), "r+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_at(path, file.fileno()):
            return file
        file.close()  # another process has renamed it


def require_bundle(root: Path) -> None:
    """Raise BundleError, saying what is there instead, unless ``root`` contains a manifest."""
    if (root / MANIFEST_NAME).is_file():
        return
    unfinished = root if root.name.endswith(".partial") else partial_path(root)
    if unfinished.is_dir() and (unfinished == root or not root.exists()):
        problem = f"is an unfinished export ({unfinished.name}); run the export command again"
    elif not root.exists():
        problem = "does not exist; allowed: a directory made by 'skipdec export'"
    elif not root.is_dir():
        problem = "is not a directory; allowed: one made by 'skipdec export'"
    elif (root / "config.json").is_file():
        problem = f"is a checkpoint, not a bundle; run: skipdec export {root}"
    else:
        problem = f"is not a bundle: it has no {MANIFEST_NAME}; make a bundle with 'skipdec export'"
    raise BundleError(str(root), problem)


def read_manifest(root: HeldDirectory) -> Manifest:
    """Read ``root``'s manifest.json. Raises BundleError unless it is unchanged, byte for byte."""
    subject = str(root.path / MANIFEST_NAME)
    path = root.locate(MANIFEST_NAME)
    content = read_file(path, BundleError, subject=subject, remedy=EXPORT_AGAIN)
    manifest = Manifest.from_json(content, subject)
    if content != canonical_text(json.loads(content)).encode():
        raise BundleError(subject, f"was reformatted or damaged; {EXPORT_AGAIN}")
    return manifest


def read_schedule(root: HeldDirectory) -> dict[str, Any]:
    """Return the JSON object of an ExitSchedule in ``root``'s schedule.json.

    Raises BundleError for a wrong digest; ``runtime.schedule.bundle`` checks the schedule.
    """
    path, subject = root.locate(SCHEDULE_NAME), str(root.path / SCHEDULE_NAME)
    remedy = "write it with 'skipdec schedule set'"
    if not os.path.lexists(path):
        raise BundleError(subject, f"is missing; {remedy}")
    content = read_file(path, BundleError, subject=subject, remedy=remedy)
    document = parse_json(content, BundleError, subject=subject, remedy=remedy, exact=True)
    if not isinstance(document, dict) or not isinstance(document.get("schedule"), dict):
        raise BundleError(subject, f"has no object under the key 'schedule'; {remedy}")
    if document.keys() != _SCHEDULE_KEYS or content != sealed_text(document).encode():
        raise BundleError(subject, f"does not match its digest: it was edited or damaged; {remedy}")
    schedule: dict[str, Any] = document["schedule"]
    return schedule


def file_problems(
    root: HeldDirectory, manifest: Manifest, records: Iterable[FileRecord], *, hash_weights: bool
) -> list[str]:
    """Return one text, starting with the file's name, per file that differs from its record."""
    engines = (*manifest.all_engines, *manifest.draft_engines, *manifest.canonical)
    unhashed = weights_files(() if hash_weights else engines)
    return [
        f"{record.path}: {problem}"
        for record in records
        if (problem := _record_problem(root, record, record.path not in unhashed))
    ]


def weights_files(engines: Iterable[EngineSpec]) -> frozenset[str]:
    """Return the paths of the weights files of ``engines``, as the manifest lists them."""
    return frozenset(path for engine in engines for path in engine.weights)


def _record_problem(root: HeldDirectory, record: FileRecord, hashed: bool) -> str | None:
    """Return how the file differs from its record, or None."""
    if outside := root.leaves(record.path):
        return f"is a link to {outside}, outside the bundle; copy the file into the bundle"
    try:
        with open_regular(root.locate(record.path)) as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.size:
                return f"has {size:,} bytes; expected {record.size:,}"
            digest = _sha256(file) if hashed else record.sha256
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"can't be read ({error.strerror or error})"
    if digest != record.sha256:
        return f"has SHA-256 {digest[:12]}…; expected {record.sha256[:12]}…"
    return None


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()
