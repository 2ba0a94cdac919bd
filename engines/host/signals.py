"""Handling of SIGINT and SIGTERM: commands end alike, and critical sections are not cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none, like most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Interrupted(KeyboardInterrupt):
    """One of ``SIGNALS``, by ``number``; a KeyboardInterrupt, so SIGTERM ends work like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """A command's handler of ``SIGNALS``: raises Interrupted and records the signal ``received``.

    Other code may swallow the exception (Python does in a finaliser) or replace it by its own
    (tracing does), so call ``raise_if_interrupted`` before publishing results.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def install(self) -> None:
        """Handle the signals, except those that the parent process has set to be ignored."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)

    def uninstall(self) -> None:
        """Restore the system's handling: nothing is left that has to end cleanly."""
        for number in SIGNALS:
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.received = number
        raise Interrupted(number)


def raise_if_interrupted() -> None:
    """Raise Interrupted again if the command received a signal; no effect outside commands."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts) and handler.received is not None:
        raise Interrupted(handler.received)


class Interruption:
    """A context in which the first of ``SIGNALS`` is only noted; a second interrupts.

    ``tell`` is called on the first signal. Does nothing in threads other than the main one, which
    receive no signals.
    """

    def __init__(self, tell: Callable[[], object] | None = None) -> None:
        self.number: int | None = None  # the signal that was received
        self._tell = tell
        self._previous = {
            number: handler
            for number in SIGNALS
            if callable(handler := signal.getsignal(number))
            and threading.current_thread() is threading.main_thread()
        }

    def __enter__(self) -> Interruption:
        for number in self._previous:
            signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def is_requested(self) -> bool:
        """Return True if a signal was received; the ``cancelled`` callback of a generator."""
        return self.number is not None

    def raise_again(self) -> None:
        """Deliver the received signal, if any, to the previous handler; call after the context."""
        if self.number is not None:
            signal.raise_signal(self.number)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()
        if self._tell is not None:
            self._tell()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_deferred(tell: Callable[[], object] | None = None) -> Iterator[None]:
    """Defer the first of ``SIGNALS``, on which ``tell`` is called, to the end of the block."""
    with Interruption(tell) as interruption:
        yield
    interruption.raise_again()
