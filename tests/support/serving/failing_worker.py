"""Run a worker that the system fails while it loads: ``python -m failing_worker``.

FAILURE in the environment names the error: ``full disk``, ``no number`` or ``no memory``.
"""

from __future__ import annotations

import errno
import os

from skipdec import Generator
from skipdec.runtime.serving.process import worker
from skipdec.runtime.serving.process.settings import WorkerSettings


def _fail(settings: WorkerSettings) -> Generator:
    path = str(settings.path / "weights.bin")
    raise {
        "full disk": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path),
        "no number": OSError("a library's own words"),
        "no memory": MemoryError(),
    }[os.environ["FAILURE"]]


if __name__ == "__main__":
    WorkerSettings.open = _fail  # type: ignore[method-assign]
    worker.main()
