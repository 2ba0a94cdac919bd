"""The server's life: it listens, loads, serves, drains, and ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import cast

import uvicorn

from ....engines.errors import UsageError
from ....engines.host.signals import SIGNALS
from ...generator import Generator, OpenGenerator
from ..async_engine import AsyncEngine
from ..config import ServiceConfig
from .app import build_app
from .config import ServerConfig
from .connections import TimedProtocol
from .keys import ApiKeys
from .logs import SERVER
from .served import ServedModel, ServedModels

_CUT_SECONDS = 5.0  # for answers to leave, once nothing runs any more
_MAX_HEADERS = 32 << 10  # bytes of a request's line and headers


@dataclass(frozen=True)
class ServedBundle:
    """A bundle's directory and the name that clients call it."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> ServedBundle:
        """Read ``PATH``, whose last part is the name, or ``NAME=PATH``."""
        name, is_named, path = text.partition("=")
        if not is_named:
            return cls(Path(text).resolve().name, Path(text))
        if not name or not path:
            raise UsageError("BUNDLE", f"is {text!r}; allowed: PATH or NAME=PATH")
        return cls(name, Path(path))


class HttpServer:
    """Serves bundles until it is stopped: `run` in the thread that owns it, `stop` from any.

    ``open_generator``: opens a bundle's directory. ``address`` is known once this is made: the
    port listens from then on, and answers that it is loading once it runs.
    """

    def __init__(
        self,
        bundles: Sequence[ServedBundle],
        open_generator: OpenGenerator,
        config: ServerConfig,
        service: ServiceConfig,
    ) -> None:
        """Raises UsageError for an address that is taken, two equal names, and a bad key file."""
        self.models = ServedModels([bundle.name for bundle in bundles])
        self._bundles = bundles
        self._open_generator = open_generator
        self._config = config
        self._service = service
        app = build_app(self.models, config, ApiKeys.read(config.api_key_file))
        self._socket = _listening(config.host, config.port)
        self.address = _address(self._socket)
        self._http = _Uvicorn(
            uvicorn.Config(
                app,
                http=cast(
                    type[asyncio.Protocol],
                    partial(
                        TimedProtocol,
                        head_timeout=config.read_timeout,
                        write_timeout=config.write_timeout,
                    ),
                ),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=config.max_connections,
                h11_max_incomplete_event_size=_MAX_HEADERS,
                timeout_graceful_shutdown=int(_CUT_SECONDS),
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def run(self) -> bool:
        """Serve until `stop`, or a signal where this is the main thread.

        Returns whether all threads have ended; a bundle that was being loaded has one that goes on.
        Raises what opening a bundle does.
        """
        return asyncio.run(self._run())

    def stop(self) -> None:
        """Refuse new requests, end those there are, return from `run`. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)

    async def _run(self) -> bool:
        self._loop = asyncio.get_running_loop()
        http = asyncio.create_task(self._http.serve(sockets=[self._socket]))
        stopped = asyncio.create_task(self._stopped.wait())
        loading = asyncio.create_task(self._load())
        SERVER.info("listening on %s", self.address, extra={"fields": {"address": self.address}})
        try:
            with _first_signal_calls(self._loop, self._stopped.set):
                await asyncio.wait((http, stopped, loading), return_when=asyncio.FIRST_COMPLETED)
                if loading.done() and loading.exception() is None:
                    SERVER.info("ready: %s", ", ".join(self.models))
                    await asyncio.wait((http, stopped), return_when=asyncio.FIRST_COMPLETED)
                await self._drain()
        finally:
            self._http.should_exit = True
            has_loaded = loading.done()
            loading.cancel()
            stopped.cancel()
            await http
            for model in self.models.values():
                await asyncio.to_thread(model.engine.close)
            SERVER.info("stopped")
        if has_loaded:
            loading.result()
        return has_loaded

    async def _load(self) -> None:
        for bundle in self._bundles:
            generator = await _in_daemon_thread(partial(self._open_generator, bundle.path))
            engine = AsyncEngine(generator, self._service)
            try:
                model = ServedModel.of(bundle.name, engine, self._config.schedules)
            except BaseException:
                engine.close()
                raise
            self.models.add(model)

    async def _drain(self) -> None:
        """Let what runs end; after shutdown_timeout, end it."""
        models = self.models
        models.is_draining = True
        timeout = self._config.shutdown_timeout
        SERVER.info("draining: up to %g s for %d texts", timeout, len(models.running))
        engines = [model.engine for model in models.values()]
        drained = await asyncio.gather(*(engine.drain(timeout) for engine in engines))
        if not all(drained):
            models.was_cut = True
            SERVER.warning("%d texts had not ended in time and are cut", len(models.running))
            for stream in models.running:
                stream.cancel()
            await asyncio.gather(*(engine.drain(_CUT_SECONDS) for engine in engines))


class _Uvicorn(uvicorn.Server):
    """uvicorn, but for signals, which are `HttpServer`'s: it drains before it closes anything."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


@contextmanager
def _first_signal_calls(
    loop: asyncio.AbstractEventLoop, call: Callable[[], object]
) -> Iterator[None]:
    """The first of SIGNALS calls ``call``; a second one ends the process at once.

    Nothing happens outside of the main thread, which no signal reaches.
    """

    def receive() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        call()

    with suppress(ValueError, RuntimeError):
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, receive)
    yield


async def _in_daemon_thread(call: Callable[[], Generator]) -> Generator:
    """``call()`` in a thread that the process does not wait for when it ends."""
    loaded: Future[Generator] = Future()

    def run() -> None:
        try:
            loaded.set_result(call())
        except Exception as error:  # noqa: BLE001  (raised where it is waited for)
            loaded.set_exception(error)

    Thread(target=run, name="skipdec load", daemon=True).start()
    return await asyncio.wrap_future(loaded)


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server((host, port), family=found[0][0], backlog=2048)
    except OSError as error:
        raise UsageError(
            "address",
            f"{host}:{port} can't be listened on ({error.strerror or error}); choose another "
            "--host or --port; port 0 is a free one",
        ) from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
