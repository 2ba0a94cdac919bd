"""What sends requests: a server's protocol, or an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from benchmarks.load.requests import LoadRequest


class RequestFailed(Exception):  # noqa: N818  (a result, which is counted)
    """A request ended with no whole text; its text is the kind of failure, e.g. ``status 429``."""


class Client(Protocol):
    """One service. Requests run side by side."""

    def stream(self, request: LoadRequest) -> AbstractAsyncContextManager[AsyncIterator[int]]:
        """Send a request; the block gets an iterator of events: how many tokens came at once.

        Leaving the block cancels the request. Entering it and the iterator raise RequestFailed.
        """
        ...
