"""Progress and summary of ``skipdec generate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from ...engines.errors import SkipDecError, counted
from ...engines.host.events import Events
from ..drafting.config import DraftConfig
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..tokens.outputs import Drafts, StreamDelta
from ..tokens.sampling import DEFAULT_MAX_TOKENS, SamplingParams

_SECONDS_BETWEEN_UPDATES = 0.1


@dataclass
class _Counts:
    """Counts over all deltas so far."""

    tokens: int = 0
    finished: int = 0
    cut: int = 0  # completions that ended at the default of max_tokens
    later_tokens: int = 0  # all but the first of each completion
    layers_of_later_tokens: int = 0
    accepted: int = 0  # drafted tokens that were right


class GenerationProgress:
    """Counts tokens, layers and ``total`` completions, and reports them to ``events``.

    ``schedules`` are those of the requests, ``draft`` their drafts. As a context manager it
    measures the time for speeds.
    """

    def __init__(
        self,
        schedules: Sequence[ExitSchedule],
        total: int,
        events: Events,
        kernels: str,
        draft: DraftConfig | None = None,
    ) -> None:
        self._kernels = kernels
        self._draft = draft
        self._num_drafted = 0
        different = set(schedules)
        self._schedule = min(different, key=lambda schedule: schedule.horizon)
        self._longest_horizon = max(schedule.horizon for schedule in different)
        self._num_schedules = len({_without_horizon(schedule) for schedule in different})
        self._events = events
        self._num_reported = 0  # completions
        events.stage("generating", total)
        self._start = perf_counter()
        self._last_update = 0.0
        self._end: float | None = None
        self._counts = _Counts()
        self._lengths: dict[tuple[int, int], int] = {}  # of the completions of this call that run

    def __enter__(self) -> GenerationProgress:
        self._start = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = perf_counter()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Drop what the call inside the block counted if it fails."""
        before = replace(self._counts)
        try:
            yield
        except SkipDecError:
            self._counts = before
            self._lengths.clear()
            raise

    def update(self, deltas: Sequence[StreamDelta]) -> None:
        """Count one step."""
        for delta in deltas:
            self._count(delta)
        now = perf_counter()
        if now - self._last_update >= _SECONDS_BETWEEN_UPDATES:
            self._last_update = now
            new = self._counts.finished - self._num_reported
            self._num_reported = self._counts.finished
            self._events.advance(f"{self.tokens_per_second:.1f} tokens/s", new)

    def _count(self, delta: StreamDelta) -> None:
        row, counts = (delta.request_index, delta.index), self._counts
        if delta.token_ids:
            counts.tokens += len(delta.token_ids)
            if row in self._lengths:
                counts.later_tokens += len(delta.token_ids)
                counts.layers_of_later_tokens += delta.layers * len(delta.token_ids)
                counts.accepted += delta.drafted
            self._lengths[row] = self._lengths.get(row, 0) + len(delta.token_ids)
        if delta.finish_reason is not None:
            length = self._lengths.pop(row, 0)  # the next call numbers its requests from 0 again
            counts.finished += delta.finish_reason != "abort"
            counts.cut += delta.finish_reason == "length" and length == DEFAULT_MAX_TOKENS

    def count_drafts(self, drafts: Drafts) -> None:
        """Add the drafted tokens of results, because deltas don't count them."""
        self._num_drafted += drafts.drafted

    @property
    def seconds(self) -> float:
        """Wall-clock time since the start, prompts included."""
        return (self._end or perf_counter()) - self._start

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over ``seconds``."""
        return self._counts.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def realised_depth(self) -> float | None:
        """Mean layers of all output tokens but the first of each completion."""
        if not self._counts.later_tokens:
            return None
        return self._counts.layers_of_later_tokens / self._counts.later_tokens

    @property
    def _horizon_text(self) -> str:
        """``64``, or ``16…64`` if the requests' horizons differ."""
        first, last = self._schedule.horizon, self._longest_horizon
        return f"{first}" if first == last else f"{first}…{last}"

    @property
    def _schedule_text(self) -> str | None:
        """The schedule of all requests; None if they differ in more than their horizons."""
        if self._num_schedules > 1:
            return None
        text = format_schedule(self._schedule)
        return text.replace(f"horizon={self._schedule.horizon}", f"horizon={self._horizon_text}")

    def summary(self) -> dict[str, Any]:
        """Return the figures as a JSON object; fields in which requests differ are null."""
        horizon, drafts = self._schedule.horizon, self._drafts_summary()
        return {
            "schedule": self._schedule_text,
            "horizon": horizon if horizon == self._longest_horizon else None,
            "num_layers": self._schedule.num_layers,
            "realised_depth": self.realised_depth,
            "completions": self._counts.finished,
            "tokens": self._counts.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "kernels": self._kernels,
            **({} if drafts is None else {"drafts": drafts}),
        }

    def _drafts_summary(self) -> dict[str, Any] | None:
        """Return the figures of drafts; None where there are none."""
        if self._draft is None:
            return None
        drafted, accepted = self._num_drafted, self._counts.accepted
        passes = self._counts.later_tokens - accepted
        return {
            "draft": str(self._draft),
            "passes": passes,
            "drafted": drafted,
            "accepted": accepted,
            "tokens_per_pass": self._counts.later_tokens / passes if passes else None,
            "acceptance": accepted / drafted if drafted else None,
        }

    def _drafts_text(self) -> str:
        """Return the figures of drafts as a line, "" where there are none."""
        figures = self._drafts_summary()
        if figures is None or figures["tokens_per_pass"] is None:
            return ""
        text = f"\ndraft {figures['draft']}: {figures['tokens_per_pass']:.2f} tokens per pass"
        if figures["acceptance"] is not None:
            text += f", {figures['acceptance']:.0%} of {figures['drafted']:,} drafted tokens right"
        return text

    def summary_text(self, params: SamplingParams) -> str:
        """Return the figures in two lines, or three with drafts.

        A hint follows if the default of max_tokens cut texts.
        """
        depth = self.realised_depth
        num_layers = self._schedule.num_layers
        hint = ""
        if self._counts.cut and "max_tokens" not in params.model_fields_set:
            hint = (
                f"\n{self._counts.cut} of {self._counts.finished} texts end at --max-tokens, by "
                f"default {DEFAULT_MAX_TOKENS}; 0 is as many as fit"
            )
        realised = "" if depth is None else f", realised depth {depth:.2f} of {num_layers} layers"
        schedule = self._schedule_text
        ran = f"{self._num_schedules} schedules" if schedule is None else f"schedule {schedule}"
        is_full = schedule is not None and self._schedule.is_full  # at any horizon
        horizon = "" if is_full else f", horizon {self._horizon_text}"
        return (
            f"{ran}{horizon}{realised}\n"
            f"{counted(self._counts.tokens, 'token')} in {self.seconds:.2f} s, "
            f"{self.tokens_per_second:.1f} tokens/s, prompts included, on {self._kernels}"
            f"{self._drafts_text()}{hint}"
        )


def _without_horizon(schedule: ExitSchedule) -> str:
    return format_schedule(schedule).replace(f"horizon={schedule.horizon}", "")
