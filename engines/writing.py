"""Context managers that add the missing file name to an OSError raised by a write."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = 2**20  # free bytes below which a library's failed write is blamed on a full disk


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Set the filename of an OSError that has none to ``path``: write() does not know the name.

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

    ``libraries``: exception types that report a failed write, such as SafetensorError.
    """
    try:
        with naming_file(directory):
            yield
    except libraries as error:
        if shutil.disk_usage(directory).free >= _FULL:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory)) from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path``. An OSError carries the file's name."""
    with naming_file(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
