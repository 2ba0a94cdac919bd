"""WorkerProcess: one worker, from its start to its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

from ....engines.host import tied
from ....engines.host.processor import huge_pages_environment
from .link import Link
from .settings import WorkerSettings

WORKER = f"{__package__}.worker"
_LAST_SECONDS = 5.0  # for a process that has closed its link to end by itself


class WorkerProcess:
    """A started worker and this side's end of its link.

    The kernel kills it when the thread that made it ends, however that comes (Linux). It gets none
    of the parent's file descriptors but the link's, and huge pages where glibc can ask for them.
    """

    def __init__(self, settings: WorkerSettings, module: str = WORKER) -> None:
        """Raises OSError where the system has no descriptor, process or memory for it."""
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as opened:
            opened.enter_context(ours)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    tied.__name__,
                    str(os.getpid()),
                    module,
                    json.dumps(settings.to_dict()),
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | huge_pages_environment(),
            )
            opened.pop_all()
        self.link = Link(ours)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once; there is nothing that it would have to tidy up. From any thread."""
        self._process.kill()

    def wait(self) -> str:
        """Wait for its end, after that of its link, and say how it came."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        self._process.kill()
        code = self._process.wait()
        self.link.close()
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
