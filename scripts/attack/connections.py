"""Hold connections to `skipdec serve` open in every way, and request the largest answers.

    python scripts/attack/connections.py --count 300

Attacks three servers of a tiny bundle and ends each by SIGTERM with connections still open:
early: COUNT requests that are answered before they are complete; a byte or garbage follows each.
A client that sends proper requests in between gets every answer, and all connections are closed.
idle: COUNT idle connections and half requests; meanwhile the worker is killed.
answers: as many log-probabilities as a request may have, as a whole, streamed to a slow reader, and
of prompts; measures the longest silence of /health/live.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from harness import tiny_bundle
from processes import child_processes
from server import Server, repeated, started

_KEY = "key"
_SECONDS = 30.0  # for any event to happen
_LOG_BYTES = 512  # maximum per connection
_SILENCE = 1.0  # maximum in seconds for /health/live, on a busy machine
_END = f"Host: here\r\nAuthorization: Bearer {_KEY}\r\n\r\n".encode()
_EARLY = (
    b"GET /version HTTP/1.1\r\nContent-Length: 9\r\n" + _END,
    b"GET /health/live HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + _END,
    b"POST /nothing HTTP/1.1\r\nContent-Length: 9\r\n" + _END,
    b"POST /nothing HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n" + _END,
    b"DELETE /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n" + _END,
    b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n",
    b"PUT /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n" + _END,
    b"GET /version HTTP/1.1\r\n" + _END + b"GET /version HTTP/1.1\r\nContent-Length: 9\r\n" + _END,
)
_RESTS = (b"x", b"no chunk\r\n", b"123456789G\r\n\r\n", b"\0" * 8)


def main() -> int:
    """Attack each server and print any problems."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="connections of each attack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(_ATTACKS), help="one of the attacks")
    arguments = parser.parse_args()
    problems = []
    with tempfile.TemporaryDirectory(prefix="connections-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny", quantize="int8")
        for name in [arguments.only] if arguments.only else _ATTACKS:
            found = list(_ATTACKS[name](bundle, arguments.count, random.Random(arguments.seed)))
            print(f"{name}: {len(found)} problems")
            problems += found
    print(*problems, sep="\n")
    return int(bool(problems))


def _early(bundle: Path, count: int, draw: random.Random) -> Iterator[str]:
    """Send requests that are answered before they are complete, and never finish them."""
    with started(bundle, "--read-timeout", "0.2", key=_KEY) as server, ExitStack() as stack:
        opened: list[socket.socket] = []
        slowest = 0.0
        for index in range(count):
            client = stack.enter_context(_connected(server))
            opened.append(client)
            client.sendall(draw.choice(_EARLY) + draw.choice(_RESTS))
            if index % 10 == 9:
                begin = time.monotonic()
                if (status := server.ask("/version")[0]) != 200:
                    yield f"{status} beside {index} answered connections"
                slowest = max(slowest, time.monotonic() - begin)
        left = sum(not _is_closed(client) for client in opened)
        if left:
            yield f"{left} of {count} connections are never closed"
        print(f"{count} early answers; another client waited {slowest * 1e3:.0f} ms at most")
        for _ in range(count):
            stack.enter_context(_connected(server)).sendall(draw.choice(_EARLY))
        yield from _stopped(server)


def _idle(bundle: Path, count: int, draw: random.Random) -> Iterator[str]:
    """Hold idle connections and half requests, and kill a worker."""
    with started(bundle, key=_KEY) as server, ExitStack() as stack:
        before = sum(map(len, server.log))
        for _ in range(count):
            client = stack.enter_context(_connected(server))
            if draw.random() < 0.5:
                client.sendall(b"GET /version HTTP/1.1\r\n")
        if server.ask("/health/live")[0] != 200:
            yield "/health/live fails beside idle connections"
        for worker in child_processes(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        _wait(lambda: server.ask("/health/ready")[0] != 200)
        if not _wait(lambda: server.ask("/health/ready")[0] == 200):
            yield "the server is not ready again after its worker's death"
        open_files = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        logged = sum(map(len, server.log)) - before
        print(f"{count} idle connections, {open_files} open files, {logged:,} bytes of log")
        if logged > _LOG_BYTES * (count + 100):
            yield f"{logged:,} bytes of log"
        yield from _stopped(server)


def _answers(bundle: Path, count: int, draw: random.Random) -> Iterator[str]:
    """Request the maximum of log-probabilities; ``count`` is not used."""
    tokens = 61
    full = {"logprobs": 20, "ignore_eos": True, "temperature": 1.0, "seed": draw.randrange(9)}
    largest = full | {"prompt": ["a"] * 51, "n": 2, "max_tokens": tokens}
    requests = {
        "whole": largest,
        "streamed": largest | {"stream": True},
        "scored": {"prompt": ["a" * tokens] * 64, "echo": True, "logprobs": 20, "max_tokens": 0},
    }
    with started(bundle, "--max-batch-size", "64", key=_KEY) as server:
        for name, fields in requests.items():
            begin = time.monotonic()
            with repeated(lambda: server.ask("/health/live")) as polls:
                status, body = server.ask("/v1/completions", **fields)
                seconds = time.monotonic() - begin
            silence = max(waited for _, waited in polls)
            print(
                f"{name}: {len(body) / 1e6:.1f} MB in {seconds:.1f} s, "
                f"/health/live after {silence * 1e3:.0f} ms at most"
            )
            if status != 200:
                yield f"{name}: {status}"
            if silence > _SILENCE:
                yield f"{name}: /health/live was silent for {silence:.1f} s"
        status, body = server.ask("/v1/completions", **largest | {"n": 3})
        if status != 400:
            yield f"more log-probabilities than allowed: {status}"
        yield from _stopped(server)


_ATTACKS: dict[str, Callable[[Path, int, random.Random], Iterator[str]]] = {
    "early": _early,
    "idle": _idle,
    "answers": _answers,
}


def _connected(server: Server) -> socket.socket:
    return socket.create_connection((server.host, server.port), _SECONDS)


def _stopped(server: Server) -> Iterator[str]:
    """Stop the server as an operator does, and yield any problems."""
    if code := server.stop():
        yield f"the server ended with {code}"
    if "Traceback" in "".join(server.log):
        yield "the log has a traceback"


def _is_closed(client: socket.socket) -> bool:
    """Read to EOF; return False if it does not come."""
    client.settimeout(_SECONDS)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def _wait(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 2 * _SECONDS
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    sys.exit(main())
