"""ClientQueues: a queue for each client, served in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ClientQueues(Generic[K, T]):
    """Waiting items in one queue per client; iteration goes round the clients.

    A client's items keep their order of arrival. A client whose item was served goes behind all
    others, and so does one that had nothing waiting, so each client waits for at most one item of
    every client before it. With one client the order is that of arrival.

    >>> queues = ClientQueues[int, str]()
    >>> for key, (client, item) in enumerate([("a", "a1"), ("a", "a2"), ("b", "b1")]):
    ...     queues.add(key, item, client)
    >>> list(queues)
    ['a1', 'b1', 'a2']
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[K, T]] = {}  # by client, in the order of turns
        self._clients: dict[K, str] = {}  # of each item

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[T]:
        """Yield all items in the order in which they are served if no other comes."""
        rounds = deque(iter(queue.values()) for queue in self._queues.values())
        while rounds:
            queue = rounds.popleft()
            for item in queue:
                yield item
                rounds.append(queue)
                break

    def add(self, key: K, item: T, client: str) -> None:
        """Queue an item behind the others of its client."""
        self._clients[key] = client
        self._queues.setdefault(client, {})[key] = item

    def serve(self, key: K) -> None:
        """Remove a waiting item; its client's next turn comes after all other clients."""
        client = self._clients.pop(key)
        queue = self._queues.pop(client)
        del queue[key]
        if queue:
            self._queues[client] = queue

    def discard(self, key: K) -> bool:
        """Remove an item without using its client's turn; return False if it is unknown."""
        if (client := self._clients.pop(key, None)) is None:
            return False
        del self._queues[client][key]
        if not self._queues[client]:
            del self._queues[client]
        return True
