"""One writer per bundle: an advisory lock on a file beside the bundle."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from .errors import BundleError


class BundleLock:
    """An exclusive ``flock`` on ``.<name>.lock`` beside the bundle ``target``; never waits.

    The kernel drops the lock when its process ends, however it ends, so a killed writer blocks
    nobody. The file holds the writer's process id, for the error of the second one, and is removed
    on release.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.lock")
        self._descriptor: int | None = None

    def __enter__(self) -> BundleLock:
        """Take the lock; BundleError, naming the holder's process id, if another writer has it."""
        while self._descriptor is None:
            self._descriptor = self._try_lock()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the file and release the lock, in this order, so that nobody else's is removed."""
        assert self._descriptor is not None
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def _try_lock(self) -> int | None:
        """Return a locked descriptor, or None if the file was removed by its last holder."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current(descriptor):
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

    def _is_current(self, descriptor: int) -> bool:
        """Tell whether the path still names the locked file, not a successor of it."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False
