"""Work in a separate process, whose crash the parent survives.

The worker gets a JSON request on stdin and writes lines on stdout: ``{"progress": …}``, then
``{"report": …}`` or ``{"error": …}`` with a `SentError`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, Self

from ..errors import SkipDecError
from .sent_error import SentError
from .signals import signal_name
from .tied import tied_command

_STDERR_SHOWN = 2000  # characters, from the end


@dataclass(frozen=True)
class Limits:
    """Limits on the resources of a worker that processes untrusted content.

    ``seconds`` of processor time and ``memory`` in bytes of address space, which the kernel
    enforces, and ``wall`` seconds from the request to the report.
    """

    seconds: int
    memory: int
    wall: float


class WorkerCrashError(Exception):
    """The worker ended without a report or an error.

    ``code`` is its exit code, or minus the signal that killed it; ``output`` the end of its stderr.
    ``limit`` says which of its limits it exceeded; None if it ended for another reason.
    """

    def __init__(self, code: int, output: str, limit: str | None = None) -> None:
        super().__init__(code, output, limit)
        self.code = code
        self.output = output
        self.limit = limit

    @property
    def reason(self) -> str:
        """Say on one line how it ended, with the line of its output that says why."""
        if self.limit is not None:
            return self.limit
        lines = self.output.splitlines()
        if self.code < 0:  # a library says why first, Python last
            how, why = f"was ended by {signal_name(-self.code)}", lines[:1]
        else:
            how, why = f"exited with code {self.code}", lines[-1:]
        return f"{how} ({why[0]})" if why else how

    def describe(self, problem: str) -> str:
        """Return ``problem`` with the worker's last output."""
        return f"{problem}\n{self.output}" if self.output else problem


class Worker:
    """A started ``python -m module``, which imports its dependencies before it gets a request.

    ``environment`` is added to this process's. Leaving the context without a report, also by an
    exception such as KeyboardInterrupt, kills the process, as does the end of the thread that made
    it. One that exceeds its ``limits`` ends in a WorkerCrashError that names the limit.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits
        seconds, memory = (0, 0) if limits is None else (limits.seconds, limits.memory)
        self._stderr = tempfile.TemporaryFile(  # noqa: SIM115  (closed by __exit__)
            "w+", encoding="utf-8", errors="replace"
        )
        self.process = subprocess.Popen(
            tied_command(module, *arguments, seconds=seconds, memory=memory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            env=os.environ | (environment or {}),
        )
        self._has_reported = False
        self._has_expired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._has_reported:
            self.process.kill()
        with self._stderr, self.process:
            pass

    def run(self, request: str, on_progress: Callable[[Any], None]) -> Any:  # noqa: ANN401
        """Send the one request and return the content of its report, any JSON value.

        ``on_progress`` receives the content of each progress line. Raises the worker's SkipDecError
        or OSError, or WorkerCrashError.
        """
        if self._limits is None:
            return self._run(request, on_progress)
        timer = threading.Timer(self._limits.wall, self._expire)
        timer.start()
        try:
            return self._run(request, on_progress)
        finally:
            timer.cancel()

    def _run(self, request: str, on_progress: Callable[[Any], None]) -> Any:  # noqa: ANN401
        for kind, content in self._lines(request):
            if kind == "progress":
                on_progress(content)
            elif kind == "error":
                raise SentError(**content).error()
            else:
                self._has_reported = True
                return content
        code = self.process.wait()
        self._stderr.seek(0)
        output = self._stderr.read()[-_STDERR_SHOWN:].strip()
        raise WorkerCrashError(code, output, self._exceeded(code))

    def _expire(self) -> None:
        self._has_expired = True
        self.process.kill()

    def _exceeded(self, code: int) -> str | None:
        """Return which limit the process exceeded, by its exit code; None if none."""
        if self._limits is None:
            return None
        if code == -signal.SIGXCPU:
            return f"took more than {self._limits.seconds} s of processor time"
        return f"took more than {self._limits.wall:g} s" if self._has_expired else None

    def _lines(self, request: str) -> Iterator[tuple[str, Any]]:
        """Send the request and yield the kind and content of each line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            with self.process.stdin as stdin:
                stdin.write(request)
        except BrokenPipeError:
            return
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # the worker was killed while it wrote
            ((kind, content),) = json.loads(line).items()
            yield kind, content


class WorkerLines:
    """The worker's side: thread-safe JSON lines on stdout; other prints go to stderr.

    ``is_read`` is False once the parent has stopped reading.
    """

    def __init__(self) -> None:
        self._file: IO[str] = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self.is_read = True

    def write(self, kind: str, content: Any) -> None:  # noqa: ANN401
        """Write one line."""
        try:
            with self._lock:
                self._file.write(json.dumps({kind: content}) + "\n")
                self._file.flush()
        except BrokenPipeError:
            self.is_read = False

    def write_error(self, error: SkipDecError | OSError) -> None:
        """Write ``error`` for the parent to raise."""
        self.write("error", asdict(SentError.of(error)))
