"""``python -m … SETTINGS DESCRIPTOR``: the process that runs a bundle for `ProcessEngine`.

SETTINGS are JSON, DESCRIPTOR is this side's end of a socket. It exits as soon as its parent ends,
which it detects by EOF on the socket.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from threading import Thread
from time import monotonic

from ....engines.errors import SkipDecError
from ....engines.host.signals import SIGNALS
from ...scheduling.running_batch import RunningBatch
from ..engine_loop import EngineLoop
from ..messages import Begun, Cancellation, FromEngine, Refused, ServedRequest, StepResult
from .link import Link, Loaded, Logged, in_parts
from .settings import WorkerSettings

_LOGGER = logging.getLogger(__name__)
_FRESH_SECONDS = 0.05


def main() -> None:
    """Load the bundle, report that, and run requests until the parent ends."""
    for number in SIGNALS:  # a terminal's Ctrl-C is for the parent, which drains
        signal.signal(number, signal.SIG_IGN)
    settings = WorkerSettings.from_json(sys.argv[1])
    link = Link(socket.socket(fileno=int(sys.argv[2])))
    os.dup2(2, 1)  # prints of libraries go to stderr
    logging.getLogger().addHandler(_LinkHandler(link))
    ready: Future[EngineLoop] = Future()
    Thread(target=_take_in, args=(link, ready), name="skipdec intake", daemon=True).start()
    with ExitStack() as held:
        try:
            generator = settings.open()
            batch = held.enter_context(generator.running_batch(settings))
            batch.memory.require_room(generator.resolve_schedule(None, max_tokens=1))
        except (SkipDecError, OSError, MemoryError) as error:
            link.send(Refused.of(error))
            return
        loop = EngineLoop(batch, _Results(link, batch).post)
        ready.set_result(loop)
        digest = generator.bundle.manifest.digest
        link.send(Loaded(digest, batch.stats(), batch.memory))
        try:
            loop.run()
        except Exception:
            _LOGGER.exception("the engine's thread has failed")
            os._exit(1)


def _take_in(link: Link, ready: Future[EngineLoop]) -> None:
    """Hand over what the parent sends, from the start on, and exit at once when it ends.

    It sends no requests before it receives `Loaded`.
    """
    code = 1
    try:
        while True:
            match message := link.receive():
                case Cancellation():
                    ready.result().send(message)
                case ServedRequest():
                    try:
                        ready.result().require_possible(message)
                    except SkipDecError as error:
                        link.send(Refused.of(error, message.request_id))
                    else:
                        ready.result().send(message)
    except EOFError:
        code = 0
    except Exception:
        _LOGGER.exception("requests can't be read any more")
    finally:
        os._exit(code)


class _Results:
    """Sends the progress and results of requests to the parent.

    Figures are included when a request has begun or ended, else at most every 50 ms.
    """

    def __init__(self, link: Link, batch: RunningBatch) -> None:
        self._link = link
        self._batch = batch
        self._figures_sent = 0.0  # by time.monotonic; 0.0: figures are due

    def post(self, message: FromEngine) -> None:
        """Send a message from the engine's loop."""
        if not isinstance(message, StepResult):
            self._figures_sent = 0.0
            self._link.send(message)
            if isinstance(message, Begun):
                return
            message = StepResult()  # carries the figures, which count the text
        now = monotonic()
        if message.ended or message.scored or now - self._figures_sent > _FRESH_SECONDS:
            self._figures_sent = now
            message = replace(message, stats=self._batch.stats())
        if message.deltas or message.stats is not None:
            for part in in_parts(message):
                self._link.send(part)


class _LinkHandler(logging.Handler):
    """Sends log lines to the parent, which formats them."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._link.send(Logged(record.levelno, record.name, self.format(record)))
        except Exception:  # noqa: BLE001  (a line that can't be formatted or encoded)
            self.handleError(record)


if __name__ == "__main__":
    main()
