"""Serve a tiny bundle with a tokenizer over HTTP in a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import httpx2
import pytest

from skipdec.runtime.generator import Generator
from skipdec.runtime.opening import OpenOptions
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.serving.async_engine import AsyncEngine
from skipdec.runtime.serving.http.config import ServerConfig
from skipdec.runtime.serving.http.server import HttpServer, OpenEngine, ServedBundle
from skipdec.runtime.stitching.slot_stitcher import SlotStitcher

ROWS = 2  # running at once
_PAUSE = 0.005  # s between polls, which leave the processor to the server


def open_tiny(path: Path) -> Generator:
    return Generator.open(path, threads=1, max_batch_size=ROWS)


def logged(caplog: pytest.LogCaptureFixture, *request_ids: str) -> list[logging.LogRecord]:
    """Wait for the log lines of these requests, each written after its answer was sent."""
    until = monotonic() + 30
    while True:
        lines = {
            getattr(record, "fields", {}).get("request_id"): record for record in caplog.records
        }
        if lines.keys() >= set(request_ids):
            return [lines[request_id] for request_id in request_ids]
        assert monotonic() < until, f"no lines of {request_ids}"
        sleep(0.01)


class Running:
    """A running server and a plain HTTP client."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.url = server.address
        self.http = httpx2.Client(base_url=server.address, timeout=60)

    def complete(
        self, *, headers: Mapping[str, str] | None = None, **fields: object
    ) -> httpx2.Response:
        return self.http.post("/v1/completions", json={"model": "tiny"} | fields, headers=headers)

    def figures(self) -> dict[str, float]:
        """Return the figures of /metrics by name and labels."""
        lines = self.http.get("/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        until = monotonic() + 60
        while not is_so():
            assert monotonic() < until
            sleep(_PAUSE)

    def wait_until(self, is_so: Callable[[dict[str, float]], bool]) -> None:
        until = monotonic() + 60
        while not is_so(figures := self.figures()):
            assert monotonic() < until, figures
            sleep(_PAUSE)


def in_thread(
    opener: Callable[[Path], Generator] = open_tiny, max_waiting: int = 256, **options: str
) -> OpenEngine:
    """Open engines in threads of this process, whose steps tests can hold."""

    @asynccontextmanager
    async def opened(bundle: ServedBundle) -> AsyncIterator[AsyncEngine]:
        generator = await asyncio.to_thread(opener, bundle.path)
        engine = AsyncEngine(generator, OpenOptions(max_waiting=max_waiting, **options))
        try:
            yield engine
        finally:
            await asyncio.to_thread(engine.close)

    return opened


@contextmanager
def serving(
    *bundles: ServedBundle,
    open_engine: OpenEngine | None = None,
    wait: bool = True,
    **config: object,
) -> Iterator[Running]:
    """Serve ``bundles`` inside the block, ready at its start unless ``wait`` is False."""
    server = HttpServer(bundles, open_engine or in_thread(), ServerConfig(port=0, **config))
    server.listen()
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    running = Running(server)
    try:
        until = monotonic() + 120
        while wait and running.http.get("/health/ready").status_code != 200:
            assert thread.is_alive()
            assert monotonic() < until
            sleep(_PAUSE)
        yield running
    finally:
        server.stop()
        thread.join(60)
        running.http.close()
    assert not thread.is_alive()


@contextmanager
def connected(server: Running, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Open a plain connection to the server inside the block."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.socket() as client:
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(60)
        client.connect((host, int(port)))
        yield client


@contextmanager
def held_steps() -> Iterator[Event]:
    """Make engines of this process wait in their next step of running texts inside the block.

    Yields an event that is set as soon as an engine waits.
    """
    with _held(RunningBatch, "step", lambda batch: batch.running_rows > 0) as waits:
        yield waits


@contextmanager
def held_prompts() -> Iterator[Event]:
    """Make engines of this process wait before they run a prompt, inside the block."""
    with _held(SlotStitcher, "prefill", lambda *_: True) as waits:
        yield waits


@contextmanager
def _held(kind: type, method: str, waits_now: Callable[..., bool]) -> Iterator[Event]:
    waits, may_go_on = Event(), Event()
    original = getattr(kind, method)

    def held(one: object, *args: object) -> object:
        if waits_now(one, *args):
            waits.set()
            may_go_on.wait()
        return original(one, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, held)
        try:
            yield waits
        finally:
            may_go_on.set()
