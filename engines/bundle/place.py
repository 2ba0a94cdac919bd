"""Atomic publication of a finished result directory, with locking and crash recovery.

A result is a directory that contains a certain file, its mark: a bundle its manifest, a tuned or
rounded checkpoint its report. Three names lie beside a result ``NAME`` while it is written:
``.NAME.partial`` (being built), ``.NAME.lock`` (the writer's lock) and ``.NAME.old`` (being
replaced). A crash leaves one of two states, which ``Place.repair`` recognises:

- ``NAME`` exists: it is complete, old or new; ``.NAME.old`` can be deleted.
- ``NAME`` is missing and ``.NAME.old`` has its mark: the swap was interrupted; put it back.

In a directory that others may write to, such as /tmp, anybody can put a link at these names, to a
directory that would be emptied or to a file that would be overwritten: ``open_own`` and
``require_own_directory`` refuse what this user or the directory's owner does not own.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..constants import text
from ..documents import naming_file
from ..errors import BundleError, UsageError

MANIFEST_NAME = text("manifest_name")
SCHEDULE_NAME = text("schedule_name")
TOKENIZER_NAME = "tokenizer.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
NGRAMS_NAME = "ngrams.json"
CARD_NAME = "README.md"  # not in the manifest: its owner may edit it

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
NOT_STDOUT = "is not stdout here; give another name, or leave --output out"
_REFUSALS = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM}
_FILE_MODE = 0o666  # both reduced by the umask
_DIRECTORY_MODE = 0o775


def partial_path(target: Path) -> Path:
    """Return the build directory of the result ``target``: beside it, on the same file system."""
    return _beside(target, "partial")


def _beside(target: Path, purpose: str) -> Path:
    """Return the hidden path beside ``target`` for ``purpose``; the root has one, too."""
    return target.parent / f".{target.name}.{purpose}"


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Make everything in ``directory`` durable (fsync); of a link, only its name."""
    for path in directory.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(directory)


@dataclass(frozen=True)
class Place:
    """The location of a result of some ``kind``, e.g. "a bundle", a directory with ``mark``."""

    target: Path  # absolute
    mark: str
    kind: str

    @property
    def partial(self) -> Path:
        """Return the directory in which the result is built."""
        return partial_path(self.target)

    @property
    def old(self) -> Path:
        """Return the directory to which a replaced result is moved before it is deleted."""
        return _beside(self.target, "old")

    @property
    def is_interrupted(self) -> bool:
        """Return True if a swap stopped between its two renames."""
        return not self.target.exists() and (self.old / self.mark).is_file()

    @contextmanager
    def locked(self, *, force: bool) -> Iterator[None]:
        """Hold the writer's lock; an interrupted swap is repaired first.

        Raises UsageError as ``check`` does, before anything is changed and again under the lock,
        and BundleError while another process writes here, or if the existing result can't be moved.
        """
        self.check(force=force)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        with WriterLock(self.target):
            self.repair()
            self.check(force=force)
            self._require_movable()
            yield

    @contextmanager
    def replaced(self, *, force: bool) -> Iterator[Path]:
        """Lock, yield a new directory, ``partial``, and publish it here when the block ends.

        The existing result stays until then. After an error the new directory is deleted.
        """
        with self.locked(force=force):
            self.delete(self.partial)
            make_own_directory(self.partial)
            try:
                with naming_file(self.partial):
                    yield self.partial
            except BaseException:
                self.delete(self.partial)
                raise
            self.take(self.partial)

    def repair(self) -> None:
        """Finish or undo an interrupted swap. The caller holds the lock."""
        if self.is_interrupted:
            require_own_directory(self.old)
            self.old.rename(self.target)
            sync(self.target.parent)
        self.delete(self.old)

    def take(self, directory: Path) -> None:
        """Make ``directory`` durable and publish it here, replacing any existing result.

        The caller holds the lock and has called ``repair``. The replaced result is deleted last. If
        the kernel and the file system can exchange two names, ``target`` exists throughout;
        otherwise it is missing between two renames, and ``repair`` restores it after a crash. If
        it can't be moved, both stay where they were. Its owner and mode don't matter.
        """
        sync_tree(directory)
        if not self.target.exists() or is_empty_directory(self.target):
            directory.rename(self.target)
            sync(self.target.parent)
            return
        directory.rename(self.old)
        if not exchange(self.old, self.target):
            self.old.rename(directory)
            self.target.rename(self.old)
            directory.rename(self.target)
        sync(self.target.parent)
        self._remove(self.old)

    def _require_movable(self) -> None:
        """Raise BundleError, before the work, if the existing result can't be moved at its end.

        It tries to rename the result to a directory that has an entry, which always fails, for a
        mount, a directory of an image's layer (overlayfs), and another user's in a directory like
        /tmp with another error. An empty directory of a layer may be replaced nevertheless.
        """
        if not self.target.exists():
            return
        make_own_directory(self.old)
        (self.old / "entry").touch()
        try:
            self.target.rename(self.old)
        except OSError as error:
            is_empty_layer = error.errno == errno.EXDEV and is_empty_directory(self.target)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not is_empty_layer:
                problem = f"can't be replaced here ({error.strerror}); remove it, or choose another"
                raise BundleError(str(self.target), f"{problem} name") from error
        finally:
            (self.old / "entry").unlink()
            self.old.rmdir()

    def delete(self, directory: Path) -> None:
        """Delete ``directory`` if it exists, its mark first, so the rest can't pass for a result.

        Raises BundleError for a link and for a directory that is not ours.
        """
        require_own_directory(directory)
        if directory.exists():
            self._remove(directory)

    def _remove(self, directory: Path) -> None:
        (directory / self.mark).unlink(missing_ok=True)
        shutil.rmtree(directory)

    def check(self, *, force: bool, reads: Iterable[str | Path | None] = ()) -> None:
        """Raise UsageError with all ``problems``, if any, after deleting leftovers by ``sweep``."""
        if problems := self.problems(force=force, reads=reads):
            self.sweep()
            raise UsageError(str(self.target), *problems)

    def sweep(self) -> None:
        """Delete an unheld lock and a replaced result beside a complete one."""
        lock = WriterLock(self.target)
        is_left = lock.path.is_file() or self.old.is_dir()
        if is_left and (self.target / self.mark).is_file():
            with suppress(BundleError, OSError), lock:
                self.repair()

    def problems(self, *, force: bool, reads: Iterable[str | Path | None] = ()) -> list[str]:
        """Return the reasons why no result may be written here; changes nothing.

        Allowed are a free name, an empty directory and, with ``force``, another result that does
        not contain any of the files and directories that the new one is made from, ``reads``.
        """
        target = self.target
        problems = []
        if not target.name:
            problems.append("is the root of the file system; name a directory below it")
        if target.name == "-":
            problems.append(NOT_STDOUT)
        if os.path.lexists(target) and not is_empty_directory(target):
            if not (target / self.mark).is_file():
                problems.append(
                    f"exists and is not {self.kind}; choose another name or move it away"
                )
            elif held := [path for path in reads if path is not None and _lies_in(target, path)]:
                problems += [f"holds what is read, {path}; choose another name" for path in held]
            elif not force:
                problems.append("exists; pass --force to replace it, or choose another name")
            elif not os.access(target, os.W_OK | os.X_OK):
                problems.append("can't be replaced: no permission to delete files in it")
        ancestor = next((parent for parent in target.parents if parent.exists()), target)
        if not ancestor.is_dir():
            problems.append(f"lies below {ancestor}, which is not a directory")
        elif not os.access(ancestor, os.W_OK | os.X_OK):
            problems.append(f"can't be written: no permission to create files in {ancestor}")
        for beside in (self.partial, self.old):
            if (problem := foreign_directory(beside)) is not None:
                problems.append(f"needs the name {beside.name}, which {problem}")
        return problems


def _lies_in(directory: Path, path: str | Path) -> bool:
    """Return whether ``path`` is ``directory`` or below it, symbolic links resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically; return False, with nothing changed, if that is impossible."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    arguments = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    return bool(renameat2(*arguments, ctypes.c_uint(_RENAME_EXCHANGE)) == 0)


def bundle_place(target: Path) -> Place:
    """Return the place of the bundle ``target``, symbolic links resolved."""
    return Place(Path(os.path.realpath(target)), MANIFEST_NAME, "a bundle")


class WriterLock:
    """An exclusive ``flock`` on ``.<name>.lock`` beside the result ``target``; never waits.

    The kernel drops it when its process ends. The file contains the writer's process id, for the
    error message, and is removed on release.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = _beside(target, "lock")
        self._descriptor: int | None = None

    def __enter__(self) -> WriterLock:
        """Take the lock. Raises BundleError, naming the holder's process id, if it is taken."""
        while self._descriptor is None:
            self._descriptor = self._try_lock()
        try:
            with naming_file(self.path):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file, then release the lock: another writer's file is never removed."""
        assert self._descriptor is not None
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def _try_lock(self) -> int | None:
        """Return a locked descriptor, or None if the last holder removed the file."""
        descriptor = open_own(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(self.path, descriptor):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise BundleError(
                str(self.target),
                f"is being written by process {holder}; wait for it or stop it, then try again",
            ) from None
        os.close(descriptor)
        return None


def is_empty_directory(path: Path) -> bool:
    """Return True if ``path`` is a directory without entries."""
    return path.is_dir() and not any(path.iterdir())


def open_own(path: Path) -> int:
    """Open the file ``path`` for reading and writing, creating it if needed; return a descriptor.

    Raises BundleError unless it is a regular file, not a link, owned by this user or by the owner
    of the directory.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        except FileExistsError:
            pass
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            continue  # its owner removed it in between
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            raise BundleError(str(path), _problem(path.lstat(), path, stat.S_IFREG)) from None
        problem = _foreign(os.fstat(descriptor), path, stat.S_IFREG)
        if problem is None:
            return descriptor
        os.close(descriptor)
        raise BundleError(str(path), problem)


def is_at(path: Path, descriptor: int) -> bool:
    """Return True if ``path`` still names the open file and not a successor."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def make_own_directory(path: Path) -> None:
    """Make the directory ``path`` unless it exists. Raises as ``require_own_directory``."""
    try:
        path.mkdir(_DIRECTORY_MODE)
    except FileExistsError:
        require_own_directory(path)


def require_own_directory(path: Path) -> None:
    """Raise BundleError with the result of ``foreign_directory``, if any."""
    if (problem := foreign_directory(path)) is not None:
        raise BundleError(str(path), problem)


def foreign_directory(path: Path) -> str | None:
    """Return the problem with an existing ``path`` that is not a directory of ours, or None.

    A directory is ours if it is not a link, belongs to this user or to the owner of its parent,
    and is not world-writable.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _foreign(found, path, stat.S_IFDIR)


def _foreign(found: os.stat_result, path: Path, kind: int) -> str | None:
    is_open = found.st_mode & stat.S_IWOTH if kind == stat.S_IFDIR else found.st_nlink > 1
    is_trusted = found.st_uid in (os.geteuid(), path.parent.stat().st_uid)
    is_ours = stat.S_IFMT(found.st_mode) == kind and is_trusted and not is_open
    return None if is_ours else _problem(found, path, kind)


def _problem(found: os.stat_result, path: Path, kind: int) -> str:
    """Return what is there instead, and what to do."""
    wanted = "a directory" if kind == stat.S_IFDIR else "a file"
    if stat.S_ISLNK(found.st_mode):
        what = f"is a link to {path.readlink()}"
    elif stat.S_IFMT(found.st_mode) != kind:
        what = f"is not {wanted}"
    elif found.st_uid != os.geteuid():
        what = f"belongs to user {found.st_uid}, not to user {os.geteuid()}, who runs this"
    elif kind == stat.S_IFDIR:
        what = "can be written by everybody"
    else:
        what = "has other hard links" if found.st_nlink > 1 else "can't be written"
    return f"{what}; skipdec creates {wanted} there: remove it, or choose another name"
