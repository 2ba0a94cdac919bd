"""TemplateProcesses: a chat template, compiled and rendered in processes that may be killed.

A chat template is a program that comes with a model. It runs in Jinja's own sandbox, in a process
whose processor time and memory the kernel bounds, so that a runaway template fails only the chat
that it was to render.
"""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Condition
from time import monotonic
from typing import Any
from weakref import finalize

from ...engines.errors import BundleError, ClosedError, OverloadedError, UsageError
from ...engines.host.installation import require_extra
from ...engines.host.process import HomeProcess
from . import template_worker as worker

MAX_SECONDS = 10.0  # of wall clock for one request
MAX_PROCESSES = 4  # of one template
_READ = 1 << 18  # bytes
_PACKAGES = ("jinja2", "markupsafe")


class _EndedError(Exception):
    """A process has died or was killed; the text says why."""


class _Process:
    """A started process and this side's end of its socket, for one request at a time."""

    def __init__(self) -> None:
        """Raises OSError where the system has no descriptor, process or memory for it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [_interpreter(), "-P", worker.__file__, *_package_directories()],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        self.variables: frozenset[str] | None = None  # variables of the template, once compiled

    @property
    def has_ended(self) -> bool:
        """Return True if the process has ended by itself."""
        return self._process.poll() is not None

    def ask(self, kind: bytes, content: bytes) -> tuple[bytes, bytes]:
        """Send a request and return the kind and content of its answer. Raises _EndedError."""
        until = monotonic() + MAX_SECONDS
        try:
            self._socket.settimeout(MAX_SECONDS)
            self._socket.sendall(worker.HEADER.pack(kind, len(content)))
            self._socket.sendall(content)
            answer, length = worker.HEADER.unpack(self._receive(worker.HEADER.size, until))
            return answer, self._receive(min(length, worker.MAX_TEXT), until)
        except TimeoutError:
            raise _EndedError(
                f"takes longer than {MAX_SECONDS:g} s (is the machine busy?)"
            ) from None
        except (EOFError, ConnectionError):
            raise _EndedError(self._reason()) from None

    def _receive(self, length: int, until: float) -> bytes:
        parts = []
        while length:
            self._socket.settimeout(max(until - monotonic(), 1e-3))
            part = self._socket.recv(min(length, _READ))
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _reason(self) -> str:
        """Wait for the process, whose socket is closed, and return why it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll()
        if code == -signal.SIGXCPU:
            return f"takes more than {worker.MAX_SECONDS} s of processor time"
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"ended the process that renders it ({how})"

    def kill(self) -> None:
        """Kill the process; from any thread."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and free its resources; only from the thread that uses it."""
        self.kill()
        self._process.wait()
        self._socket.close()


def _interpreter() -> str:
    """Return a Python like this one, even if a program embeds it, as Triton's backend does."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inside = [Path(prefix, "bin", version) for prefix in (sys.exec_prefix, sys.base_exec_prefix)]
    candidates = [Path(sys.executable or ""), *inside]
    found = (path for path in candidates if path.name.startswith("python") and path.is_file())
    return str(next(found, version))


def _package_directories() -> list[str]:
    """Return the directories of Jinja, for an interpreter that may have another module path."""
    found = [find_spec(package) for package in _PACKAGES]
    origins = (spec.origin for spec in found if spec is not None and spec.origin is not None)
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins))


class TemplateProcesses:
    """Renders one template, for up to MAX_PROCESSES threads at once; others wait.

    Processes start when they are needed and stay for later chats. One that dies or takes too long
    is replaced. They end with `close`, when this object is collected, and with this process,
    because then their sockets are closed. ``subject`` names the template's file in errors.
    """

    def __init__(self, source: str, subject: str) -> None:
        self._source = source.encode("utf-8", "surrogatepass")
        self._subject = subject
        self._home = HomeProcess(subject, "open the bundle here")
        self._changed = Condition()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False
        finalize(self, _end_all, self._all, os.getpid())

    def variables(self) -> frozenset[str]:
        """Return the names of the variables that the template reads; raises as `render`."""
        with self._compiled() as process:
            assert process.variables is not None
            return process.variables

    def render(self, now: datetime, variables: Mapping[str, Any]) -> str:
        """Return the text for ``variables``, which hold only JSON values.

        Raises BundleError for a source that is not a template; UsageError if the template refuses
        the variables with ``raise_exception``, can't render them, or takes too much time or memory;
        MissingExtraError without jinja2; OverloadedError if the system can start no process; and
        ClosedError after `close`.
        """
        with self._compiled() as process:
            request = marshal.dumps((now.isoformat(), dict(variables)), 4)
            kind, content = self._ask(process, worker.VARIABLES, request)
        if kind == worker.TEXT:
            return content.decode("utf-8", "surrogatepass")
        words = content.decode("utf-8", "replace")
        if kind == worker.REFUSED:
            raise UsageError("messages", f"are refused by the chat template: {words}")
        raise UsageError("chat template", f"can't render these messages ({words})")

    def close(self) -> None:
        """End all processes, even those that are rendering; their threads raise ClosedError."""
        if self._home.is_left:
            return
        with self._changed:
            self._is_closed = True
            while self._idle:
                self._forget(self._idle.pop())
            for process in self._all:  # the threads that use them remove them
                process.kill()
            self._changed.notify_all()

    @contextmanager
    def _compiled(self) -> Iterator[_Process]:
        """Lend a process that has compiled the template."""
        process = self._take()
        try:
            if process.variables is None:
                self._compile(process)
            yield process
        except _EndedError as error:
            self._replace(process)
            if self._is_closed:
                raise self._closed() from None
            raise UsageError(
                "chat template", f"{error}; use another one, or shorter messages"
            ) from None
        except BundleError:
            self._give_back(process)
            raise
        except BaseException:  # the process may still answer this request
            with self._changed:
                self._forget(process)
                self._changed.notify()
            raise
        self._give_back(process)

    def _compile(self, process: _Process) -> None:
        kind, content = self._ask(process, worker.SOURCE, self._source)
        if kind == worker.INVALID:
            words = content.decode("utf-8", "replace")
            raise BundleError(
                self._subject, f"is not a template ({words:.300}); correct it and export again"
            )
        process.variables = frozenset(json.loads(content))

    def _ask(self, process: _Process, kind: bytes, content: bytes) -> tuple[bytes, bytes]:
        answer = process.ask(kind, content)
        if answer[0] == worker.EXHAUSTED:  # the state of its memory is unknown
            raise _EndedError(
                f"needs more than {worker.MAX_MEMORY >> 20} MiB of memory, or writes more than "
                f"{worker.MAX_TEXT >> 20} MiB of text"
            )
        return answer

    def _take(self) -> _Process:
        self._home.require()
        require_extra("chat", "chat templates")
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._idle or len(self._all) < MAX_PROCESSES
            )
            while self._idle and not self._is_closed:
                process = self._idle.pop()
                if not process.has_ended:
                    return process
                self._forget(process)
            return self._start()

    def _start(self) -> _Process:
        if self._is_closed:
            raise self._closed()
        try:
            process = _Process()
        except OSError as error:
            raise OverloadedError(
                "chat template", f"no process can be started to render it ({error.strerror})"
            ) from error
        self._all.add(process)
        return process

    def _replace(self, process: _Process) -> None:
        """End a process and start another, which is ready when the next chat comes."""
        with self._changed:
            self._forget(process)
            with suppress(ClosedError, OverloadedError):
                self._idle.append(self._start())
            self._changed.notify_all()

    def _forget(self, process: _Process) -> None:
        process.end()
        self._all.discard(process)

    def _give_back(self, process: _Process) -> None:
        with self._changed:
            if self._is_closed:
                self._forget(process)
            else:
                self._idle.append(process)
                self._changed.notify()

    def _closed(self) -> ClosedError:
        return ClosedError(self._subject, "is closed; open the bundle again")


def _end_all(processes: set[_Process], owner: int) -> None:
    if os.getpid() == owner:  # not in a fork, which has only copies
        for process in processes:
            process.end()
        processes.clear()
