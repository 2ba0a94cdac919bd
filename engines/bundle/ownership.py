"""Protection against files and links planted at predictable names.

Names beside a result are predictable (``.NAME.partial``, ``.NAME.lock``, …). In a directory that
others may write to, such as /tmp, anybody can put a link there, to a directory that would be
emptied or to a file that would be overwritten.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..errors import BundleError

_REFUSALS = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM}
_FILE_MODE = 0o666  # both reduced by the umask
_DIRECTORY_MODE = 0o775


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
