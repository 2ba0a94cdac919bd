"""Run a worker whose disk is full while it loads: ``python -m failing_worker``."""

from __future__ import annotations

import errno
import os

from skipdec import Generator
from skipdec.runtime.serving.process import worker
from skipdec.runtime.serving.process.settings import WorkerSettings


def _fail(settings: WorkerSettings) -> Generator:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(settings.path / "weights.bin"))


if __name__ == "__main__":
    WorkerSettings.open = _fail  # type: ignore[method-assign]
    worker.main()
