"""Which schedule a request runs: the one asked for, the generator's default, the bundle's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.errors import ScheduleError
from .schedule import ExitSchedule
from .text import default_horizon, parse_schedule


@dataclass(frozen=True)
class ScheduleResolver:
    """Resolves what is asked for, None, a text or a schedule, for one request by its tokens.

    ``own`` is the bundle's, ``default`` stands for None, and None there for ``own``. Where ``own``
    is of constant depth and so has no horizon to lend, ``2x`` is two schedules for requests of 16
    and 64 tokens, ``2x:horizon=64`` one.
    """

    num_layers: int  # of the bundle
    own: ExitSchedule
    default: str | ExitSchedule | None = None

    def resolve(self, wanted: str | ExitSchedule | None, num_tokens: int) -> ExitSchedule:
        """Return the schedule of a request of ``num_tokens``.

        Raises ScheduleError for a text that is none, and for a schedule of another depth.
        """
        chosen = next((one for one in (wanted, self.default) if one is not None), self.own)
        if isinstance(chosen, str):
            horizon = default_horizon(self.own, num_tokens)
            chosen = parse_schedule(chosen, num_layers=self.num_layers, horizon=horizon)
        if not isinstance(chosen, ExitSchedule):
            raise ScheduleError("schedule", f"is {chosen!r:.80}; allowed: a text or ExitSchedule")
        if chosen.num_layers != self.num_layers:
            raise ScheduleError(
                "schedule", f"is for {chosen.num_layers} layers; the bundle has {self.num_layers}"
            )
        return chosen

    def resolve_all(
        self, wanted: str | ExitSchedule | None, num_tokens: Sequence[int]
    ) -> list[ExitSchedule]:
        """Return the schedule of each request of a call, in order.

        Raises what `resolve` does, for no requests too.
        """
        resolved = {tokens: self.resolve(wanted, tokens) for tokens in set(num_tokens) or {1}}
        return [resolved[tokens] for tokens in num_tokens]
