"""The interface of clients: a server's protocol, or an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from benchmarks.load.requests import LoadRequest


class RequestFailed(Exception):  # noqa: N818  (a result, which is counted)
    """Raised if a request ends without a complete text; its message is the kind of failure."""


class Client(Protocol):
    """Client of one service, for concurrent requests."""

    def stream(self, request: LoadRequest) -> AbstractAsyncContextManager[AsyncIterator[int]]:
        """Send a request; the block gets an iterator of events, each a number of new tokens.

        Leaving the block cancels the request. Entering it and the iterator may raise RequestFailed.
        """
        ...
