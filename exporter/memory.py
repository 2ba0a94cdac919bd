"""The peak of this process's own memory, sampled."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_STATUS = Path("/proc/self/status")
_INTERVAL_SECONDS = 0.02


class PeakMemory:
    """Samples RssAnon, i.e. memory without mapped files, while the ``with`` block runs.

    ``peak`` is the largest value seen, in bytes; 0 where the system has no /proc.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        if _STATUS.exists():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take a last sample and stop."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self.peak = max(self.peak, anonymous_bytes())
            if self._stopped.wait(_INTERVAL_SECONDS):
                self.peak = max(self.peak, anonymous_bytes())
                return


def anonymous_bytes() -> int:
    """RssAnon of this process, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
