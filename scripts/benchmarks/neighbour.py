"""A process that keeps one core busy on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Neighbour:
    """Spins on the last core available to this process.

    Use it as a context manager; it begins stopped.
    """

    def __enter__(self) -> Neighbour:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(self._process.pid, {max(os.sched_getaffinity(0))})
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the core busy inside the block."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)
