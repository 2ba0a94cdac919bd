"""The schedule that a request runs: the requested one, a default or the bundle's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

from ...engines.errors import ScheduleError, shown
from ...engines.manifest import ModelSpec
from .schedule import ExitSchedule
from .text import implied_fields, make_schedule, names_file, read_arguments

_MAX_CACHED_TEXTS = 128


@dataclass(frozen=True)
class ScheduleResolver:
    """Resolves a request's schedule, which is None, a text or a schedule, by its number of tokens.

    None means ``default``, and a ``default`` of None means ``own``, the bundle's. If ``own`` has a
    constant depth and so no horizon to lend, requests of 16 and 64 tokens get different schedules
    from ``2x``, but the same one from ``2x:horizon=64``. ``positions`` are the model's; they bound
    the horizon of a text unless the bundle's own is longer.
    """

    num_layers: int  # of the bundle
    own: ExitSchedule
    positions: int
    default: str | ExitSchedule | None = None

    @classmethod
    def of(cls, model: ModelSpec, own: ExitSchedule, default: str | ExitSchedule | None) -> Self:
        """Return the resolver for a bundle of ``model``. Raises ScheduleError for a bad default."""
        resolver = cls(model.num_layers, own, model.max_seq_len, default)
        resolver.resolve(None, model.max_seq_len)
        return resolver

    def resolve(self, wanted: str | ExitSchedule | None, num_tokens: int) -> ExitSchedule:
        """Return the schedule of a request of ``num_tokens``.

        The last schedules read from texts are cached. Raises ScheduleError for an invalid text, a
        horizon beyond the model's positions, and a schedule of another depth.
        """
        chosen = next((one for one in (wanted, self.default) if one is not None), self.own)
        if isinstance(chosen, str):
            horizon = default_horizon(self.own, min(num_tokens, self.positions))
            parse = self.parse if names_file(chosen) else self._parse_once  # a file may change
            chosen = parse(chosen, horizon)
        if not isinstance(chosen, ExitSchedule):
            raise ScheduleError("schedule", f"is {shown(chosen)}; allowed: a text or ExitSchedule")
        if chosen.num_layers != self.num_layers:
            raise ScheduleError(
                "schedule", f"is for {chosen.num_layers} layers; the bundle has {self.num_layers}"
            )
        return chosen

    def resolve_all(
        self, wanted: str | ExitSchedule | None, num_tokens: Sequence[int]
    ) -> list[ExitSchedule]:
        """Return the schedule of each request of a call, in order.

        Raises what `resolve` raises, even for no requests.
        """
        resolved = {tokens: self.resolve(wanted, tokens) for tokens in set(num_tokens) or {1}}
        return [resolved[tokens] for tokens in num_tokens]

    @cached_property
    def _parse_once(self) -> Callable[[str, int], ExitSchedule]:
        """`parse` with a cache that any thread may use."""
        return lru_cache(maxsize=_MAX_CACHED_TEXTS)(self.parse)

    def parse(self, text: str, horizon: int | None) -> ExitSchedule:
        """Read a text; ``horizon`` applies if it names none. Raises as `resolve`."""
        arguments = read_arguments(text, num_layers=self.num_layers, horizon=horizon)
        if not names_file(text):
            self._require_reachable(arguments)
        return make_schedule(text, arguments)

    def _require_reachable(self, arguments: Mapping[str, Any]) -> None:
        """Refuse a horizon that no request reaches, before the schedule is made."""
        horizon = arguments.get("horizon")
        longest = max(self.positions, self.own.lent_horizon or 1)
        if not isinstance(horizon, int) or horizon <= longest:
            return  # `ExitSchedule.from_document` refuses a horizon that is missing or not a number
        implied = implied_fields(arguments.get("decay", "linear"), arguments)
        if horizon != implied.get("horizon"):  # that of d3 follows from its other parameters
            raise ScheduleError(
                "exit schedule",
                f"horizon is {shown(horizon)}; allowed: 1 to {longest}, "
                + ("the bundle's positions" if longest == self.positions else "the bundle's own"),
            )


def default_horizon(schedule: ExitSchedule, max_tokens: int) -> int:
    """Return the horizon of a preset that names none.

    The bundle's own ``schedule`` lends its horizon; if its depth is constant, the request's
    ``max_tokens`` take its place.
    """
    lent = schedule.lent_horizon
    return max_tokens if lent is None else lent
