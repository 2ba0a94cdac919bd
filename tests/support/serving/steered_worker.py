"""Run a worker that a prompt's first token steers: ``python -m steered_worker``.

While a HOLD request runs, no text advances, but others may begin. While a STUCK request runs, no
step ends. DIE kills the process in the request's first step. RAISE raises an error that no text
causes. LOG logs lines that can't be formatted or sent. Each takes effect after the request's first
token was sent.
"""

from __future__ import annotations

import logging
import os
import signal
from threading import Event

from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.serving.process import worker
from skipdec.runtime.tokens.outputs import StreamDelta

HOLD, STUCK, DIE, RAISE, LOG = 21, 22, 23, 24, 25

_decode = RunningBatch._decode


def _steered(engine: RunningBatch) -> list[StreamDelta]:
    running = (row.request for row in engine._rows)
    orders = {one.prompt_token_ids[0] for one in running}
    if STUCK in orders:
        Event().wait()
    if DIE in orders:
        os.kill(os.getpid(), signal.SIGKILL)
    if RAISE in orders:
        raise RuntimeError("a bug")
    if LOG in orders:
        logging.error("%d", "no number")
        logging.error("\udcff")
    if HOLD in orders:
        Event().wait(0.001)
        return []
    return _decode(engine)


if __name__ == "__main__":
    RunningBatch._decode = _steered  # type: ignore[method-assign]
    worker.main()
