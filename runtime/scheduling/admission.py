"""When requests that wait are let in, while others run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ...engines.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Situation:
    """What an admission decides by; times in seconds of one clock."""

    waiting: int  # rows
    free: int  # slots
    running: int  # rows
    since: float  # when the first that waits could have been let in
    now: float


@dataclass(frozen=True)
class Admission(ABC):
    """A rule; its fields, all whole numbers, are its parameters."""

    @abstractmethod
    def wait_until(self, situation: Situation) -> float | None:
        """None lets requests in; else the time at which to ask again at the latest."""


@dataclass(frozen=True)
class FirstComeFirstServed(Admission):
    """Whoever fits is let in at once."""

    def wait_until(self, situation: Situation) -> float | None:
        """See Admission."""
        return None


@dataclass(frozen=True)
class Gang(Admission):
    """Several at a time, which then stand at like depths and share their prompts' reads of weights.

    Lets in when nothing runs, when ``min_free`` slots are free and as many rows wait, or when the
    first could have come in ``hold_ms`` ago. In a simulation of a GPU 10 to 14 % more short texts
    a second; nothing on a CPU.
    """

    min_free: int = 2
    hold_ms: int = 8

    def wait_until(self, situation: Situation) -> float | None:
        """See Admission."""
        is_gang = min(situation.free, situation.waiting) >= self.min_free
        until = situation.since + self.hold_ms / 1000
        if not situation.running or is_gang or situation.now >= until:
            return None
        return until


ADMISSIONS: Mapping[str, type[Admission]] = {"fcfs": FirstComeFirstServed, "gang": Gang}


def parse_admission(text: str | None, *, on_device: bool = False) -> Admission:
    """``fcfs``, ``gang`` or ``gang:min_free=4,hold_ms=20``; None: fcfs, or a gang on a device.

    Raises UsageError for an unknown name or parameter, or a value that is no whole number ≥ 0.
    """
    if text is None:
        return Gang() if on_device else FirstComeFirstServed()
    name, _, values = text.partition(":")
    if name not in ADMISSIONS:
        meant = did_you_mean(name, ADMISSIONS)
        raise UsageError(
            "admission", f"{name!r} is unknown; {meant}allowed: {', '.join(ADMISSIONS)}"
        )
    rule = ADMISSIONS[name]
    known = [one.name for one in fields(rule)]
    parameters: dict[str, int] = {}
    for item in filter(None, values.split(",")):
        key, _, value = item.partition("=")
        if key not in known or not value.isdecimal():
            allowed = ", ".join(f"{one}=N" for one in known) or "no parameter"
            raise UsageError("admission", f"{item!r} is not one of {name}'s: {allowed}")
        parameters[key] = int(value)
    return rule(**parameters)
