"""SIGINT and SIGTERM: one end for every command, never in the middle of what can't bear it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """One of ``SIGNALS``, by its ``number``: wherever Ctrl-C ends work, so does SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """A command's handler of ``SIGNALS``: raises Interrupted, and knows what it ``received``.

    Other code may swallow what is raised (Python does in a finaliser) or make an error of its own
    of it (tracing does): whoever is about to publish asks ``raise_if_interrupted``.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def install(self) -> None:
        """Take the signals, but for those that whoever started this process has switched off."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)

    def uninstall(self) -> None:
        """Leave the signals to the system: nothing is left that has to end in order."""
        for number in SIGNALS:
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.received = number
        raise Interrupted(number)


def raise_if_interrupted() -> None:
    """Raise Interrupted again, if the command got a signal; nothing outside of commands."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts) and handler.received is not None:
        raise Interrupted(handler.received)


class Interruption:
    """A context in which the first of ``SIGNALS`` only sets ``requested``; a second one interrupts.

    ``tell`` is called when it comes. Signals that end the process without Python's help still do.
    In threads other than the main one, which no signal reaches, it does nothing.
    """

    def __init__(self, tell: Callable[[], object] | None = None) -> None:
        self._number: int | None = None
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

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._number is not None

    def is_requested(self) -> bool:
        """``requested``, as the ``cancelled`` callback of a generator."""
        return self.requested

    def raise_again(self) -> None:
        """Hand the signal that came, if any, to who would have had it. For after the context."""
        if self._number is not None:
            signal.raise_signal(self._number)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        self._restore()
        if self._tell is not None:
            self._tell()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_deferred(tell: Callable[[], object] | None = None) -> Iterator[None]:
    """Let the first of ``SIGNALS`` wait for the end of the ``with`` block; a second does not.

    ``tell`` is called when the first one comes.
    """
    with Interruption(tell) as interruption:
        yield
    interruption.raise_again()
