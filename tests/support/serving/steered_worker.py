"""A worker that a prompt's first token steers: ``python -m steered_worker`` as the real one.

HOLD: while it runs no text gets on, though others begin. STUCK: no step ends while it runs. DIE:
the process is killed in its first step. RAISE: a bug that is no text's fault. All of this after its
first token was told.
"""

from __future__ import annotations

import os
import signal
from threading import Event

from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.serving.process import worker
from skipdec.runtime.tokens.outputs import StreamDelta

HOLD, STUCK, DIE, RAISE = 21, 22, 23, 24

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
    if HOLD in orders:
        Event().wait(0.001)
        return []
    return _decode(engine)


if __name__ == "__main__":
    RunningBatch._decode = _steered  # type: ignore[method-assign]
    worker.main()
