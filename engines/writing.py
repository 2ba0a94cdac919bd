"""Writes that name their file where the system refuses them: a full disk's error has no name."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = 2**20  # bytes; a disk with less has refused what a library could not write


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Give an OSError that names no file the name ``path``: write() does not know it.

    >>> with naming_file(Path("weights.bin")):
    ...     os.write(descriptor, content)
    OSError: [Errno 28] No space left on device: 'weights.bin'
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextmanager
def naming_full_disk(directory: Path, *libraries: type[Exception]) -> Iterator[None]:
    """Turn a library's own error into OSError (ENOSPC) if the disk of ``directory`` is full.

    ``libraries``: the types in which they report a write that failed, such as SafetensorError.
    """
    try:
        with naming_file(directory):
            yield
    except libraries as error:
        if shutil.disk_usage(directory).free >= _FULL:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory)) from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write ``content``, texts as UTF-8, to the file ``path``. Raises OSError with its name."""
    with naming_file(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
