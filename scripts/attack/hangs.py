"""Stop workers under load, end servers with stopped workers, exit interpreters that generate.

    python scripts/attack/hangs.py --count 20

Each round starts `skipdec serve` with one or two workers. While requests run, whole and as streams,
with and without a `timeout`, workers are stopped (SIGSTOP) and continued at random moments. Then
all are stopped for good, and the server gets SIGTERM. Every request must end with its text, at its
timeout, or with the documented error; the server must soon exit with 0 and leave no worker behind.
Finally, interpreters exit while a daemon thread generates, scores or loads, or while an engine is
open. Each must exit soon, with code 0, and leave no process behind.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import Any

from harness import tiny_bundle
from processes import child_processes, is_running
from server import Server, started

_CLIENTS = 12
_STOPS = 4  # per worker and round
_SHUTDOWN = 0.5  # seconds, for --shutdown-timeout
_PATIENCE = 20.0  # seconds of delay allowed on a busy machine
_MOST = 120.0  # maximum seconds of any wait

# A process that exits while something runs: `python -c EXIT BUNDLE KIND SECONDS`.
_EXIT = """
import asyncio, logging, os, signal, sys, time
from threading import Event, Thread
import skipdec
from skipdec import Generator, SamplingParams

bundle, kind, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
logging.disable(logging.WARNING)
params = SamplingParams(max_tokens=40, ignore_eos=True)
begun = Event()

def work():
    generator = Generator.open(bundle, threads=1, max_batch_size=64)
    while True:
        match kind:
            case "generate":
                generator.generate([[5] * 20] * 64, params)
            case "score":
                generator.score([[5] * 20] * 64, [[6] * 20] * 64)
            case "load":
                Generator.open(bundle, threads=1).close()
        begun.set()

async def opened():
    context = getattr(skipdec, kind.removesuffix(", stopped")).open(bundle, threads=1)
    engine = await context.__aenter__()
    streams = [engine.submit([5] * 20, params) for _ in range(200)]
    await anext(streams[0])
    return context, engine, streams

if "Engine" in kind:
    kept = asyncio.new_event_loop().run_until_complete(opened())
    if "Process" in kind:
        print(kept[1].worker_pid, flush=True)
    if "stopped" in kind:
        os.kill(kept[1].worker_pid, signal.SIGSTOP)
else:
    Thread(target=work, daemon=True).start()
    begun.wait()
time.sleep(seconds)
"""
_EXITS = ("generate", "score", "load", "AsyncEngine", "ProcessEngine", "ProcessEngine, stopped")


@dataclass(frozen=True)
class Answer:
    """A client's answer to ``request``, and the seconds it took."""

    request: dict[str, Any]
    status: int
    text: str
    seconds: float


def main() -> int:
    """Attack servers and interpreters, and print violations."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="servers, and exits of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hangs-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny", quantize="int8")
        for _ in range(arguments.count):
            problems += _attack_server(bundle, chance, outcomes)
            for kind in _EXITS:
                problems += _exit(bundle, kind, chance)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"requests: {ends}")
    exits = arguments.count * len(_EXITS)
    print(f"{arguments.count} servers, {exits} interpreters, {len(problems)} failures")
    for problem in problems:
        print(problem)
    return int(bool(problems))


def _attack_server(bundle: Path, chance: random.Random, outcomes: Counter[str]) -> Iterator[str]:
    """Stop workers of one server repeatedly, then end it; yield problems."""
    with (
        started(bundle, "--shutdown-timeout", str(_SHUTDOWN)) as server,
        ThreadPoolExecutor(_CLIENTS) as pool,
    ):
        workers = sorted(child_processes(server.process.pid))
        for _ in range(_STOPS):
            pending = _begun(server, pool, chance)
            time.sleep(chance.uniform(0, 0.1))
            worker = chance.choice(workers)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 1))
            os.kill(worker, signal.SIGCONT)
            yield from _judged(pending, outcomes, ends_well=True)
        yield from _left(server)
        yield from _ended(server, workers, pool, chance, outcomes)


def _ended(
    server: Server,
    workers: Sequence[int],
    pool: ThreadPoolExecutor,
    chance: random.Random,
    outcomes: Counter[str],
) -> Iterator[str]:
    """Send SIGTERM while all workers are stopped; yield problems."""
    pending = _begun(server, pool, chance)
    time.sleep(chance.uniform(0, 0.1))
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    time.sleep(chance.uniform(0.2, 0.5))  # lets the server read all of them
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    yield from _judged(pending, outcomes, ends_well=False)
    try:
        code = server.process.wait(_MOST)
    except subprocess.TimeoutExpired:
        yield f"the server still runs {_MOST:g} s after SIGTERM"
        return
    if code:
        yield f"the server ended with {code}"
    if (took := time.monotonic() - start) > _SHUTDOWN + _PATIENCE:
        yield f"the server took {took:.1f} s to end"
    yield from (f"worker {worker} has survived" for worker in workers if not _is_gone(worker))


def _begun(server: Server, pool: ThreadPoolExecutor, chance: random.Random) -> list[Future[Answer]]:
    """Send one request per client; return once all are sent."""
    sent = Semaphore(0)
    pending = [pool.submit(_ask, server, _drawn(chance), sent) for _ in range(_CLIENTS)]
    for _ in pending:
        sent.acquire(timeout=_MOST)
    return pending


def _drawn(chance: random.Random) -> dict[str, Any]:
    """Draw a request: whole, streamed, or a prompt to score; every other one has a timeout."""
    fields: dict[str, Any] = {"prompt": [5] * chance.randint(1, 20), "ignore_eos": True}
    kind = chance.choice(("whole", "whole", "stream", "stream", "score"))
    if kind == "score":
        fields |= {"echo": True, "logprobs": 1, "max_tokens": 0}
    else:
        fields |= {"max_tokens": chance.randint(1, 40), "stream": kind == "stream"}
        fields["n"] = chance.choice((1, 1, 3))
    if chance.random() < 0.5:
        fields["timeout"] = round(chance.uniform(0.01, 1), 3)
    return fields


def _ask(server: Server, fields: dict[str, Any], sent: Semaphore) -> Answer:
    """Send a request and read its complete answer. Raises OSError, HTTPException if it is cut."""
    start = time.monotonic()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=_MOST)
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": "tiny"} | fields))
        sent.release()
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    return Answer(fields, answer.status, text, time.monotonic() - start)


def _judged(
    pending: Sequence[Future[Answer]], outcomes: Counter[str], *, ends_well: bool
) -> Iterator[str]:
    """Count outcomes and yield forbidden ones. ``ends_well``: no connection may be cut."""
    for one in pending:
        try:
            answer = one.result(2 * _MOST)
            outcome = _outcome(answer)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            outcomes["failed"] += 1
            yield f"a request failed: {error!r}"
            continue
        outcomes[outcome] += 1
        allowed = {"length"}
        if timeout := answer.request.get("timeout"):
            allowed.add("deadline")
            if answer.seconds > timeout + _PATIENCE:
                yield f"a timeout of {timeout} s took effect after {answer.seconds:.1f} s"
        if not ends_well:
            allowed.add("unavailable")
        if outcome not in allowed:
            yield f"{answer.request} ended in {outcome}: {answer.status} {answer.text[-300:]}"


def _outcome(answer: Answer) -> str:
    """Return a finish reason, "deadline" or an error's code. Raises ValueError, LookupError."""
    if not answer.request.get("stream") or answer.status != 200:
        document = json.loads(answer.text)
        if "error" in document:
            return str(document["error"]["code"])
        ends = [choice["stop_reason"] or choice["finish_reason"] for choice in document["choices"]]
    else:
        *events, done = answer.text.removesuffix("\n\n").split("\n\n")
        if done != "data: [DONE]":
            raise ValueError(f"a stream ended without [DONE], after {len(events)} events")
        documents = [json.loads(event.removeprefix("data: ")) for event in events]
        if "error" in documents[-1]:
            return str(documents[-1]["error"]["code"])
        choices = [choice for document in documents for choice in document["choices"]]
        last = [choice for choice in choices if choice["finish_reason"]]
        ends = [choice["stop_reason"] or choice["finish_reason"] for choice in last]
        if len(ends) != answer.request["n"]:
            raise ValueError(f"{len(ends)} of {answer.request['n']} completions ended")
    return "deadline" if "deadline" in ends else str(ends[0])


def _left(server: Server) -> Iterator[str]:
    """Yield resources that workers still hold after all clients have their answers."""
    until = time.monotonic() + _PATIENCE
    names = [f'skipdec_requests_{state}{{model="tiny"}}' for state in ("running", "waiting")]
    names.append('skipdec_kv_bytes{kind="reserved",model="tiny"}')
    while any((figures := server.figures())[name] for name in names):
        if time.monotonic() > until:
            yield f"workers still hold { ({name: figures[name] for name in names}) }"
            return
        time.sleep(0.02)


def _exit(bundle: Path, kind: str, chance: random.Random) -> Iterator[str]:
    """Exit an interpreter in the middle of work; yield problems."""
    command = [sys.executable, "-c", _EXIT, str(bundle), kind, str(chance.uniform(0, 0.05))]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_MOST, check=False)
    except subprocess.TimeoutExpired:
        yield f"{kind}: the interpreter did not exit"
        return
    if ended.returncode:
        yield f"{kind}: exit code {ended.returncode}: {ended.stderr[-300:]}"
    for worker in map(int, ended.stdout.split()):
        if not _is_gone(worker):
            yield f"{kind}: worker {worker} has survived"


def _is_gone(pid: int) -> bool:
    """Return True if a process is gone or ends soon; kill it otherwise."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if not is_running(pid):
            return True
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return False


if __name__ == "__main__":
    sys.exit(main())
