"""WorkerSupervisor: a thread that starts a worker, reads its messages, and restarts it."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import subprocess
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from threading import Event, Lock, Thread
from time import monotonic

from ....engines.errors import BundleError, ClosedError, SkipDecError, WorkerDiedError
from ....engines.host.processor import huge_pages_environment
from ....engines.host.signals import SIGNALS, signal_name
from ....engines.host.tied import tied_command
from ...kv.plans import SlotMemory
from ...scheduling.stats import EngineStats
from ..messages import Begun, Refused, StepResult
from ..queue import RequestQueue
from .link import Link, Loaded, Logged, Outbox
from .settings import RestartPolicy, WorkerSettings

WORKER = f"{__package__}.worker"  # the module that a process runs

_LOGGER = logging.getLogger(__name__)
_LAST_SECONDS = 5.0  # for a process that has closed its link to exit by itself
_TICK = 0.05  # seconds between checks of deadlines while there is no worker to enforce them
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS})
_START_SECONDS = 1.0  # between attempts to start a worker while the system is short of these


class WorkerProcess:
    """A started worker and this side's end of its link.

    The kernel kills it when the thread that made it ends for any reason (Linux). It inherits no
    file descriptor but the link's, and gets huge pages if glibc can request them.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """Start the process. Raises OSError if descriptors, processes or memory are short."""
        ours, theirs = socket.socketpair()
        arguments = json.dumps(settings.to_dict()), str(theirs.fileno())
        with theirs, ExitStack() as opened:
            opened.enter_context(ours)
            self._process = subprocess.Popen(
                tied_command(WORKER, *arguments),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | huge_pages_environment(),
            )
            opened.pop_all()
        self.link = Link(ours)
        self.pid = self._process.pid
        self.kill = self._process.kill  # nothing needs to be cleaned up; from any thread

    def wait(self) -> str:
        """Wait for the process, whose link has closed, to exit, and describe how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        self._process.kill()
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"


class Deaths:
    """The deaths of one bundle's workers; times are those of a monotonic clock."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._times)

    def delay_after(self, now: float) -> float | None:
        """Record a death; return the seconds until the next start, None after too many deaths.

        With a period of 300 s, deaths at 0, 10, 400 and 410 s have the delays 0, 1, 0 and 1 s.
        """
        policy, times = self._policy, self._times
        times.append(now)
        while times[0] <= now - policy.period:
            times.popleft()
        if len(times) > policy.max_deaths:
            return None
        return policy.delays[min(len(times), len(policy.delays)) - 1]


class WorkerSupervisor:
    """Keeps one worker running until `close`, or until it has died too often.

    Only a worker that had loaded is restarted. An error that it reports while loading is final,
    because the next worker would report the same, unless the system may recover from it (OSError,
    MemoryError).
    """

    def __init__(
        self,
        settings: WorkerSettings,
        policy: RestartPolicy,
        requests: RequestQueue,
        digest: str,
    ) -> None:
        """Start the thread. ``digest`` is that of the bundle that tokenized ``requests``."""
        self._settings = settings
        self._policy = policy
        self._requests = requests
        self._digest = digest
        self._stats: EngineStats | None = None  # of the current worker; None until one has loaded
        self._ended_stats: EngineStats | None = None  # the total of the workers that died, if any
        self.memory: SlotMemory | None = None  # of the last worker that has loaded
        self.loaded: Future[None] = Future()  # done once the first worker accepts requests
        self._lock = Lock()
        self._worker: WorkerProcess | None = None
        self._closing = Event()
        self._thread = Thread(target=self._run, name="skipdec supervisor", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The id of the current process; None while there is none."""
        worker = self._worker
        return None if worker is None else worker.pid

    def stats(self) -> EngineStats:
        """Return the total of all workers. Raises ClosedError until the first has loaded."""
        known = [one for one in (self._ended_stats, self._stats) if one is not None]
        if not known:
            raise ClosedError("ProcessEngine", "has no figures: its worker never loaded")
        return EngineStats.total(known)

    def close(self) -> None:
        """Kill the worker and start no more; idempotent, from any thread but the supervisor's."""
        with self._lock:
            self._closing.set()
            if self._worker is not None:
                self._worker.kill()
        self._thread.join()

    def _run(self) -> None:
        # The parent handles signals to the process group; workers inherit this mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._keep()
        except Exception as error:
            if not isinstance(error, SkipDecError | OSError | MemoryError):
                _LOGGER.exception("the worker of %s can't be kept", self._settings.path)
            if not self._closing.is_set():
                if not self.loaded.done():
                    self.loaded.set_exception(error)
                self._requests.fail(str(error), error)

    def _keep(self) -> None:
        deaths = Deaths(self._policy)
        while True:
            reason = self._run_worker()
            if self._closing.is_set():
                return
            self._lose_worker(reason)
            if not self.loaded.done():
                problem = f"died while it loaded ({reason}); the log may say why"
                raise WorkerDiedError("worker", problem)
            delay = deaths.delay_after(monotonic())
            if delay is None:
                problem = f"died {len(deaths)} times in {self._policy.period:g} s, at last {reason}"
                raise WorkerDiedError("worker", problem)
            message = "the worker of %s died (%s); the next one starts in %g s"
            _LOGGER.error(message, self._settings.path, reason, delay)
            if self._is_closed_within(delay):
                return

    def _is_closed_within(self, seconds: float) -> bool:
        """Wait while enforcing deadlines; return True as soon as this is closed."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            self._requests.end_late()
            if self._closing.wait(min(left, _TICK)):
                return True
        return self._closing.is_set()

    def _start_worker(self) -> WorkerProcess | None:
        """Start a worker; return None if this is closed first.

        While the system is short of descriptors, processes or memory, the start of a replacement is
        retried. Raises WorkerDiedError when that takes too long.
        """
        end = monotonic() + (self._policy.start_timeout if self.loaded.done() else 0.0)
        while True:
            try:
                with self._lock:
                    if self._closing.is_set():
                        return None
                    self._worker = WorkerProcess(self._settings)
                    return self._worker
            except OSError as error:
                problem = f"can't be started: {error.strerror} (see ulimit -a)"
                if error.errno not in _SHORT or monotonic() >= end:
                    raise WorkerDiedError("worker", problem) from error
            _LOGGER.warning("the worker of %s %s; it is tried again", self._settings.path, problem)
            if self._is_closed_within(_START_SECONDS):
                return None

    def _run_worker(self) -> str:
        """Start a worker, listen to it until it ends, and return how it ended."""
        worker = self._start_worker()
        if worker is None:
            return "closed"
        outbox = Outbox(worker.link)
        try:
            self._listen(worker, outbox)
        except EOFError:
            pass
        except BaseException:
            worker.kill()
            raise
        finally:
            with self._lock:
                self._worker = None
            reason = worker.wait()
            outbox.close()
            worker.link.close()
        return reason

    def _listen(self, worker: WorkerProcess, outbox: Outbox) -> None:
        """Pass on a worker's messages. Raises EOFError at its end, and its error while loading."""
        timeout: float | None = _TICK
        while True:
            match message := worker.link.receive(timeout):
                case None:
                    self._requests.end_late()
                case Logged(level, name, text):
                    logging.getLogger(name).log(level, "%s", text)
                case Refused(request_id=None):
                    error = message.sent.error()
                    if not (self.loaded.done() and isinstance(error, OSError | MemoryError)):
                        raise error
                    _LOGGER.error("the worker of %s can't load: %s", self._settings.path, error)
                case Loaded():
                    self._take_over(message, outbox)
                    timeout = None
                    _LOGGER.info("worker %d runs %s", worker.pid, self._settings.path)
                case Begun() | Refused() | StepResult():
                    if isinstance(message, StepResult):
                        self._stats = message.stats or self._stats
                    self._requests.take(message)

    def _take_over(self, loaded: Loaded, outbox: Outbox) -> None:
        """Connect a worker to the queue. Raises BundleError if it has opened another bundle."""
        if loaded.digest != self._digest:
            raise BundleError(
                str(self._settings.path),
                "was replaced by another bundle since it was opened; start the server again",
            )
        self._stats, self.memory = loaded.stats, loaded.memory
        self._requests.connect(outbox.send)
        if not self.loaded.done():
            self.loaded.set_result(None)

    def _lose_worker(self, reason: str) -> None:
        """Keep the figures of a worker that died, and end the requests that it was running."""
        lost = self._requests.disconnect(reason)
        if self._stats is not None:
            ended = [one for one in (self._ended_stats, self._stats.ended(lost)) if one is not None]
            self._ended_stats, self._stats = EngineStats.total(ended), None
