"""Interruption: Ctrl-C that lets the running step finish."""

from __future__ import annotations

import signal
from types import FrameType


class Interruption:
    """A context in which the first Ctrl-C only sets ``requested``; a second one interrupts.

    To be used in the main thread, which is the one that signals reach.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interruption:
        self._previous = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def is_requested(self) -> bool:
        """Whether Ctrl-C was pressed; the ``cancelled`` callback of a generator."""
        return self.requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
