"""Open and check what a run over real texts, one layer at a time, needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ...engines.checking import Problems
from ...engines.manifest import ModelSpec
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint, resolve_schedule
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..data.tokenised import TokenisedData, TokenisedExample
from .config import LayerwiseConfig
from .rows import cut_off, draw_rows, tokenise_rows


@dataclass(frozen=True)
class LayerwisePlan:
    """The opened checkpoint, its schedule, and the texts. ``warnings`` are for people."""

    config: LayerwiseConfig
    checkpoint: Checkpoint
    schedule: ExitSchedule
    observed: tuple[TokenisedExample, ...]
    held_out: tuple[TokenisedExample, ...]
    warnings: tuple[str, ...]

    @property
    def model(self) -> ModelSpec:
        """The structure of the model."""
        return self.checkpoint.model

    @property
    def schedule_text(self) -> str:
        """The schedule in its text form."""
        return format_schedule(self.schedule)


Plan = TypeVar("Plan", bound=LayerwisePlan)


@dataclass(frozen=True)
class OpenedTexts:
    """A checkpoint with the valid parts of data and schedule; the errors are in ``problems``."""

    config: LayerwiseConfig
    problems: Problems
    checkpoint: Checkpoint
    data: TokenisedData | None
    schedule: ExitSchedule | None

    def plan(self, kind: type[Plan]) -> Plan:
        """Return a plan of ``kind``, its texts cut. Raises one SkipDecError with all problems, if
        any.
        """
        if self.data is None or self.schedule is None or self.problems.errors:
            raise self.problems.error()
        rows = cut_off(self.data, self.config)
        warnings = (*self.checkpoint.warnings, *rows.warnings)
        return kind(
            self.config, self.checkpoint, self.schedule, rows.observed, rows.held_out, warnings
        )


def open_texts(config: LayerwiseConfig, problems: Problems) -> OpenedTexts:
    """Read the data, open the checkpoint and parse the schedule; no weights are read.

    A schedule without a horizon gets the median completion length; if the data are bad, the model's
    maximum length, which rejects the fewest schedules. Errors go to ``problems``: bad lines of the
    data, too few of them, prompts longer than the model, a schedule of another depth. Raises them
    all if the checkpoint can't be opened.
    """
    drawn = problems.attempt(draw_rows, config)
    checkpoint = problems.attempt(open_checkpoint, config.source)
    if checkpoint is None:
        raise problems.error()
    data = None
    if drawn is not None:
        data = problems.attempt(tokenise_rows, checkpoint, drawn, config.data)
    horizon = checkpoint.model.max_seq_len if data is None else data.median_completion
    schedule = problems.attempt(resolve_schedule, config.schedule, checkpoint, horizon)
    return OpenedTexts(config, problems, checkpoint, data, schedule)
