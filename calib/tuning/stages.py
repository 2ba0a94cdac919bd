"""The stages of a tuning: announced to people, and timed for the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from ...engines.host.events import Events

_SINGLE = ("load", "publish")  # the others announce their own steps
_TITLES = {
    "load": "loading",
    "validate": "held-out loss",
    "train": "tuning",
    "publish": "writing",
}


def announce_held_out(events: Events, examples: int, batch_size: int, passes: int) -> None:
    """Announce the measuring of losses, whose batches are its steps."""
    events.stage(_TITLES["validate"], passes * -(-examples // batch_size))


@dataclass(frozen=True)
class Stages:
    """The seconds that each stage took so far, by its name in the report."""

    events: Events
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Announce a stage and record how long it took."""
        self.events.stage(_TITLES[stage], 1 if stage in _SINGLE else None)
        begin = perf_counter()
        yield
        if stage == "load":
            self.events.advance()
        self.seconds[stage] = round(perf_counter() - begin, 3)
