"""A directory that is held open, so that every file read comes from the same directory."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from ..errors import BundleError

_DESCRIPTORS = Path("/proc/self/fd")


class HeldDirectory:
    """The directory at ``path`` when this object was made, even if the path is replaced later.

    ``locate`` returns paths through a file descriptor, valid in this process while this object
    lives. They find the files of a renamed or exchanged directory; those of a deleted one are gone.
    Raises BundleError if there is no readable directory.
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
