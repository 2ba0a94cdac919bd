"""A server in its own process, for attacks: its log, figures and answers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # contains the load generator

from benchmarks.process import skipdec_command

_PATIENCE = 120.0  # seconds for the start, an answer and the end


class Server:
    """A server process that writes its log as JSON; if ``key`` is given, clients need it."""

    def __init__(self, command: Sequence[str], key: str | None = None) -> None:
        """Wait until it is ready."""
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        environment = os.environ | ({} if key is None else {"SKIPDEC_API_KEY": key})
        self.log: list[str] = []
        self._is_ready = Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        Thread(target=self._read, daemon=True).start()
        if not self._is_ready.wait(_PATIENCE) or self.process.poll() is not None:
            self.process.kill()
            raise RuntimeError("the server does not become ready:\n" + "".join(self.log))
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        self.host, self.port = host, int(port)

    def figures(self) -> dict[str, float]:
        """Return the figures of /metrics by name and labels."""
        with urlopen(f"{self.address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def ask(self, path: str, **fields: object) -> tuple[int, bytes]:
        """Return status and body of one answer, on a new connection; 0 if none comes."""
        if not fields:
            return self.send("GET", path)
        return self.send("POST", path, json.dumps(fields).encode())

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of the answer to any request; 0 if none comes."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_PATIENCE)
        try:
            connection.request(method, path, body or None, {**self._headers, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def stop(self) -> int:
        """Stop it as an operator does, or kill it after two minutes; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _read(self) -> None:
        """Keep the log, so that the pipe never fills; lines of libraries are shown."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if not line.startswith("{"):
                sys.stderr.write(line)
                continue
            document = json.loads(line)
            if str(document["message"]).startswith("listening"):
                self.address = str(document["address"])
            elif str(document["message"]).startswith("ready"):
                self._is_ready.set()
        self._is_ready.set()  # the process has ended


@contextmanager
def started(bundle: Path, *options: str, key: str | None = None) -> Iterator[Server]:
    """Run ``skipdec serve`` with one bundle until the block ends."""
    command = skipdec_command("serve", f"tiny={bundle}", "--port", "0", "--threads", "1")
    server = Server([*command, "--log-format", "json", *options], key)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@contextmanager
def repeated(ask: Callable[[], tuple[int, object]]) -> Iterator[list[tuple[int, float]]]:
    """Repeat a request inside the block; the list collects each answer's status and seconds."""
    answers: list[tuple[int, float]] = []
    ended = Event()

    def repeat() -> None:
        while True:
            start = time.monotonic()
            status, _ = ask()
            answers.append((status, time.monotonic() - start))
            if ended.wait(0.002):
                return

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()
