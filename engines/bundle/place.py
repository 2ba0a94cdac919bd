"""How a finished bundle takes its place: one rename, an exchange, or two renames and a repair.

Three names lie beside a bundle ``NAME`` while it is written: ``.NAME.partial`` (being built),
``.NAME.lock`` (one writer) and ``.NAME.old`` (on its way out). At every moment a crash leaves one
of two states, and ``repair`` knows what to do from the names alone:

- ``NAME`` exists: it is whole, old or new; what lies at ``.NAME.old`` is rubbish.
- ``NAME`` is missing and ``.NAME.old`` is a bundle: the swap stopped half way; put it back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

MANIFEST_NAME = "manifest.json"
SCHEDULE_NAME = "schedule.json"
TOKENIZER_NAME = "tokenizer.json"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


def partial_path(target: Path) -> Path:
    """Where the bundle ``target`` is built: beside it, hence on the same file system."""
    return target.with_name(f".{target.name}.partial")


def old_path(target: Path) -> Path:
    """Where the bundle that ``target`` replaces lies until it is deleted."""
    return target.with_name(f".{target.name}.old")


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable (fsync)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of ``path`` durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_interrupted(target: Path) -> bool:
    """Tell whether a swap stopped between its two renames."""
    return not target.exists() and (old_path(target) / MANIFEST_NAME).is_file()


def repair(target: Path) -> None:
    """Finish or undo an interrupted swap. The caller holds the bundle's lock."""
    if is_interrupted(target):
        old_path(target).rename(target)
        sync_directory(target.parent)
    remove_tree(old_path(target))


def take_place(partial: Path, target: Path) -> None:
    """Put ``partial`` at ``target``: by ``swap`` where something is there, else by a rename.

    An empty directory counts as nothing. The caller holds the lock, as for ``swap``.
    """
    if target.exists() and any(target.iterdir()):
        swap(partial, target)
    else:
        partial.rename(target)
        sync_directory(target.parent)


def swap(partial: Path, target: Path) -> None:
    """Put ``partial`` in the place of the bundle ``target``, delete the replaced one last.

    The caller holds the bundle's lock and has called ``repair``. Where the kernel and the file
    system exchange two names in one step, ``target`` is there at every moment; elsewhere it is
    missing between two renames, and ``repair`` puts the replaced one back after a crash.
    """
    old = old_path(target)
    partial.rename(old)
    if not _exchange(old, target):
        old.rename(partial)
        target.rename(old)
        partial.rename(target)
    sync_directory(target.parent)
    remove_tree(old)


def remove_tree(directory: Path) -> None:
    """Delete ``directory``, if it is there, its manifest first: the rest is no bundle any more."""
    if directory.exists():
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(directory)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system can't."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    arguments = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    if renameat2(*arguments, ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))
