"""The stages of a tuning: announced to people, and timed for the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from ...engines.host.events import Events

_TITLES = {
    "load": "loading",
    "validate": "held-out loss",
    "train": "tuning",
    "publish": "writing",
}


@dataclass(frozen=True)
class Stages:
    """The seconds that each stage took so far, by its name in the report."""

    events: Events
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Announce a stage and record how long it took."""
        self.events.stage(_TITLES[stage])
        begin = perf_counter()
        yield
        self.seconds[stage] = round(perf_counter() - begin, 3)
