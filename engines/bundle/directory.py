"""A directory that is held open, so that all that is read from it is one directory's."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from ..errors import BundleError

_DESCRIPTORS = Path("/proc/self/fd")


class HeldDirectory:
    """The directory that lay at ``path`` when this was made, whatever takes its name later.

    ``locate`` gives paths that lead into it by its descriptor, good in this process and while this
    object lives: of a directory that was renamed or exchanged they find the files as before, of one
    that was deleted none. Raises BundleError if there is no directory that can be read.
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
        self._root = held if held.exists() else path  # no /proc, no hold

    def locate(self, relative: str) -> Path:
        """Where this process finds the file ``relative``."""
        return self._root / relative

    def leaves(self, relative: str) -> Path | None:
        """Where ``relative`` leads if symbolic links take it out of the directory, else None."""
        root, path = (Path(os.path.realpath(self._root / part)) for part in ("", relative))
        return None if path.is_relative_to(root) else path

    def was_touched(self) -> bool:
        """Whether the directory was renamed, replaced, deleted or changed since it was opened."""
        now = os.fstat(self._descriptor)
        try:
            in_place = os.path.samestat(now, self.path.stat())
        except OSError:
            in_place = False
        return not in_place or now.st_ctime_ns != self._opened.st_ctime_ns
