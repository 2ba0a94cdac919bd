"""The server's life cycle: it listens, loads, serves, drains and ends."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from ....engines.checking import name_of
from ....engines.errors import ClosedError, SkipDecError, UsageError
from ....engines.host.process import raise_descriptor_limit
from ....engines.host.signals import SIGNALS
from ..service import EngineService
from .app import build_app
from .config import ServerConfig
from .logs import SERVER
from .middleware import ApiKeys
from .models import ServedModel, ServedModels
from .traces import exporting_traces

# An idle connection stays open for longer than clients (httpx 5 s) and load balancers (60 s) keep
# it, because a request on a connection that the server is closing is reset.
_IDLE_SECONDS = 75
_CUT_SECONDS = 5.0  # to send the last answers after everything has ended
_MAX_HEADERS = 32 << 10  # bytes of a request's line and headers
_OPEN_FILES = 4096  # requested limit; each connection is a file
_ABSENT = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True)
class ServedBundle:
    """A bundle's directory, and its name for clients."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> ServedBundle:
        """Read ``PATH``, whose last part is the name, or ``NAME=PATH``."""
        name, is_named, path = text.partition("=")
        if not is_named:
            return cls(name_of(text), Path(text))
        if not name or not path:
            raise UsageError("BUNDLE", f"is {text!r}; allowed: PATH or NAME=PATH")
        return cls(name, Path(path))


OpenEngine = Callable[[ServedBundle], AbstractAsyncContextManager[EngineService]]


class HttpServer:
    """Serves bundles until it is stopped: call `run` in the owner's thread, `stop` from any.

    ``open_engine`` loads a bundle; leaving its context closes the engine. The address is taken, and
    ``address`` is known, from construction on; `listen` accepts connections. While `run` loads
    bundles, requests are answered that the server is loading.
    """

    def __init__(
        self,
        bundles: Sequence[ServedBundle],
        open_engine: OpenEngine,
        config: ServerConfig,
    ) -> None:
        """Raise UsageError for an address in use, two equal names, or a bad key file."""
        self.models = ServedModels([bundle.name for bundle in bundles])
        self._bundles = bundles
        self._open_engine = open_engine
        self._config = config
        app = build_app(self.models, config, ApiKeys.read(config.api_key_file))
        with _naming_address(config.host, config.port):
            self._sockets = _bound(config.host, config.port)
        port = self._sockets[0].getsockname()[1]
        self.address = f"http://{_authority(config.host, port)}"
        self._http = _Uvicorn(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # with X-Forwarded-For a client could choose its name
                server_header=False,
                h11_max_incomplete_event_size=_MAX_HEADERS,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=int(_CUT_SECONDS),
            )
        )
        raise_descriptor_limit(_OPEN_FILES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def listen(self) -> None:
        """Accept connections; `run` answers them. Raises UsageError for an address in use."""
        with _naming_address(self._config.host, self._config.port):
            for one in self._sockets:
                one.listen(2048)

    def run(self) -> None:
        """Listen and serve until `stop` or, in the main thread, a signal.

        Raises what `listen` and opening a bundle raise, and SkipDecError if an engine has failed
        for good, after the texts of the others have ended.
        """
        self.listen()
        with exporting_traces():
            asyncio.run(self._run())

    def stop(self) -> None:
        """Refuse new requests, finish the others, and return from `run`. From any thread."""
        if self._loop is None:
            self._stopped.set()
        else:
            with suppress(RuntimeError):  # the loop is closed if the server has ended
                self._loop.call_soon_threadsafe(self._stopped.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        http = asyncio.create_task(self._http.serve(sockets=self._sockets))
        stopped = asyncio.create_task(self._stopped.wait())
        SERVER.info("listening on %s", self.address, extra={"fields": {"address": self.address}})
        async with AsyncExitStack() as engines:
            loading = asyncio.create_task(self._load(engines))
            try:
                with _first_signal_calls(self._loop, self._stopped.set):
                    await asyncio.wait(
                        (http, stopped, loading), return_when=asyncio.FIRST_COMPLETED
                    )
                    if loading.done() and loading.exception() is None:
                        SERVER.info("ready: %s", ", ".join(self.models.loaded))
                        await asyncio.wait((http, stopped), return_when=asyncio.FIRST_COMPLETED)
                    await self._drain()
            finally:
                self._http.should_exit = True
                loading.cancel()
                stopped.cancel()
                await http
                await asyncio.wait((loading,))
                for model in self.models.loaded.values():
                    model.chats.shutdown(wait=False)
                self.models.preparation.shutdown(wait=False)
        SERVER.info("stopped")
        if not loading.cancelled():
            loading.result()
        for name, model in self.models.loaded.items():
            if model.engine.failure.done():
                raise SkipDecError(name, f"has failed: {model.engine.failure.result()}")

    async def _load(self, engines: AsyncExitStack) -> None:
        for bundle in self._bundles:
            engine = await engines.enter_async_context(self._open_engine(bundle))
            model = ServedModel.of(bundle.name, engine, self._config.schedules)
            self.models.loaded[bundle.name] = model
            engine.failure.add_done_callback(lambda _: self.stop())

    async def _drain(self) -> None:
        """Let running texts end; after shutdown_timeout, answer the rest without the engines."""
        models = self.models
        models.is_draining = True
        timeout = self._config.shutdown_timeout
        SERVER.info("draining: up to %g s for %d texts", timeout, models.num_running)
        engines = [model.engine for model in models.loaded.values()]
        for engine in engines:
            engine.inputs.close()  # refuses chats that are not rendered yet
        drained = await asyncio.gather(*(engine.drain(timeout) for engine in engines))
        if not all(drained):
            SERVER.warning("%d texts had not ended in time and are cut", models.num_running)
            cut = ClosedError("server", "the server was shut down before the text had ended")
            for engine in engines:
                engine.requests.end_all(cut)


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals to `HttpServer`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


@contextmanager
def _first_signal_calls(
    loop: asyncio.AbstractEventLoop, call: Callable[[], object]
) -> Iterator[None]:
    """Let the first of SIGNALS call ``call``; a second one ends the process at once.

    This has no effect outside of the main thread, because no signal reaches other threads.
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


def _authority(host: str, port: int) -> str:
    """Return host and port in the form of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of ``host``, all on one port.

    Addresses that the machine lacks are left out, because it may know ``localhost`` by an IPv6
    address without having IPv6. Raises OSError if no address is left.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, *_, address in dict.fromkeys(found):
        try:
            # asyncio sends each event of a stream at once only if the socket names its protocol.
            one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address[0], port, *address[2:]))
        except OSError as error:
            absent = error
            if error.errno not in _ABSENT:
                raise
        else:
            sockets.append(one)
            port = one.getsockname()[1]
    if not sockets:
        raise absent
    return sockets


@contextmanager
def _naming_address(host: str, port: int) -> Iterator[None]:
    """Raise UsageError, which names the address, for an address that can't be used."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # UnicodeError for an impossible host name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            "address",
            f"{_authority(host, port)} can't be listened on ({reason}); choose another --host or "
            "--port; port 0 is a free one",
        ) from error
