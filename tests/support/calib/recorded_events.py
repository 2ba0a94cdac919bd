"""Record the events of a stage."""

from __future__ import annotations

from collections.abc import Sequence

from skipdec.engines.host.events import Events


class RecordedEvents(Events):
    """Records each stage's items in ``done`` and its steps in ``counts`` and ``totals``."""

    def __init__(self) -> None:
        self.summary = ""
        self.warnings: tuple[str, ...] = ()
        self.totals: dict[str, int | None] = {}
        self.counts: dict[str, int] = {}
        self.done: dict[str, list[str]] = {}
        self.lines: list[str] = []
        self._stage = ""

    def planned(self, summary: str, warnings: Sequence[str] = ()) -> None:
        self.summary = summary
        self.warnings += tuple(warnings)

    def warn(self, text: str) -> None:
        self.warnings += (text,)

    def stage(self, name: str, total: int | None = None) -> None:
        self._stage = name
        self.totals[name] = total
        self.counts[name] = 0
        self.done[name] = []

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        self.counts[self._stage] += steps
        self.done[self._stage].append(item)

    def status(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)
