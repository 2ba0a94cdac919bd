"""When what happened to a request: for traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time_ns


@dataclass
class RequestTimes:
    """Nanoseconds since 1970, None where it has not happened (yet)."""

    arrival: int = field(default_factory=time_ns)
    admission: int | None = None  # its prompt runs from here on
    first_token: int | None = None
    end: int | None = None

    def phases(self) -> list[tuple[str, int, int]]:
        """Name, begin and end of each phase that began, of a request that has ended."""
        end = self.end or time_ns()
        marks = [self.arrival, self.admission, self.first_token]
        starts = [mark for mark in marks if mark is not None]
        names = ("queue", "prefill", "decode")
        return list(zip(names, starts, [*starts[1:], end], strict=False))
