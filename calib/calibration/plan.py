"""Everything that a calibration needs, opened and checked before any layer runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from ...engines.bundle import EngineBundle
from ...engines.checking import Problems, ValidatedConfig
from ...engines.errors import UsageError
from ...engines.manifest import ModelSpec
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ...exporter.config import ExportConfig, LoadFormat
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..data.data import DataConfig
from ..data.tokenised import TokenisedExample
from ..layerwise.rows import RowCounts, cut_off, draw_rows, schedule_of, tokenise_rows
from .generation import check_room, open_writer
from .histogram import RangeMethod


class CalibrationConfig(ValidatedConfig):
    """What to calibrate, on what, and how.

    Rows are drawn by ``seed``: ``num_examples`` for the ranges, then ``num_held_out`` others for
    the losses, the first ``num_by_layer`` of which also show what each layer alone costs.
    """

    model: str = Field(min_length=1, description="opt-125m ... opt-66b, a hub id or a directory")
    data: DataConfig
    output: Path
    load_format: LoadFormat = "auto"
    schedule: str | None = Field(default=None, description="None: the checkpoint's, else full")
    method: RangeMethod = "percentile"
    percentile: float | None = Field(default=None, ge=50, le=100, description="None: 99.9")
    migrate: float | None = Field(
        default=None, ge=0, le=1, description="alpha of SmoothQuant; None: nothing is migrated"
    )
    num_examples: int = Field(default=128, ge=1)
    generate_with: Path | None = Field(
        default=None, description="bundle that writes the completions; None: the data's"
    )
    generate_tokens: int | None = Field(
        default=None, ge=1, description="most of each such completion; None: 64"
    )
    num_held_out: int = Field(default=64, ge=1)
    num_by_layer: int = Field(default=16, ge=0)
    max_tokens: int = Field(default=1 << 15, ge=1, description="of both parts: bounds memory")
    batch_tokens: int = Field(default=1024, ge=1, description="that run a layer at once")
    seed: int = Field(default=0, ge=0)
    force: bool = False

    def _problems(self) -> Iterator[str]:
        if self.percentile is not None and self.method != "percentile":
            yield f"percentile is {self.percentile} but method is {self.method}; leave it out"
        if self.generate_tokens is not None and self.generate_with is None:
            yield (
                f"generate_tokens is {self.generate_tokens} but completions are the data's; "
                "leave it out, or set generate_with"
            )
        if self.num_by_layer > self.num_held_out:
            yield (
                f"num_by_layer is {self.num_by_layer}; allowed: at most num_held_out, "
                f"{self.num_held_out}"
            )

    @property
    def percentage(self) -> float:
        """``percentile``, or its default."""
        return 99.9 if self.percentile is None else self.percentile

    @property
    def completion_tokens(self) -> int | None:
        """Most tokens of a completion that is to be generated; None where the data's are taken."""
        return None if self.generate_with is None else self.generate_tokens or 64

    @property
    def rows(self) -> RowCounts:
        """How many rows to draw, and how many of their tokens may stay."""
        return RowCounts(
            observed=self.num_examples,
            held_out=self.num_held_out,
            max_tokens=self.max_tokens,
            seed=self.seed,
            completion_tokens=self.completion_tokens,
        )


@dataclass(frozen=True)
class CalibrationPlan:
    """The opened checkpoint, its schedule, and the texts. ``warnings`` are for people.

    Where there is a ``writer``, it has yet to write the completions of ``observed``.
    """

    config: CalibrationConfig
    checkpoint: Checkpoint
    schedule: ExitSchedule
    observed: tuple[TokenisedExample, ...]
    held_out: tuple[TokenisedExample, ...]
    warnings: tuple[str, ...]
    writer: EngineBundle | None = None

    @property
    def model(self) -> ModelSpec:
        """The structure of the model."""
        return self.checkpoint.model

    @property
    def schedule_text(self) -> str:
        """The schedule in its text form."""
        return format_schedule(self.schedule)

    @property
    def summary(self) -> str:
        """What is measured on what, in a line."""
        source = "" if self.writer is None else f" (completions by {self.writer.path.name})"
        return (
            f"{self.model.name}: {len(self.observed)} texts for the ranges{source}, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_calibration(config: CalibrationConfig) -> CalibrationPlan:
    """Read the data, open the checkpoint, parse the schedule; no weight is read.

    Raises one SkipDecError with every problem found: an output that exists, bad lines of the data,
    too few of them, prompts longer than the model, a schedule of another depth, a bundle of another
    model, prompts that leave no room for what is to be generated.
    """
    problems = Problems("calibrate")
    problems.attempt(_check_output, config)
    drawn = problems.attempt(draw_rows, config.data, config.rows)
    checkpoint = problems.attempt(
        open_checkpoint, ExportConfig(model=config.model, load_format=config.load_format)
    )
    if checkpoint is None:
        raise problems.error()
    data = (
        None if drawn is None else problems.attempt(tokenise_rows, checkpoint, drawn, config.data)
    )
    schedule = problems.attempt(schedule_of, checkpoint, config.schedule, data)
    writer = None
    if config.generate_with is not None:
        writer = problems.attempt(open_writer, config.generate_with, checkpoint)
    if writer is not None and data is not None and config.completion_tokens is not None:
        observed, _ = config.rows.split(data.examples)
        problems.attempt(check_room, observed, config.completion_tokens, writer)
    if data is None or schedule is None or problems.errors:
        raise problems.error()
    rows = cut_off(data, config.rows)
    warnings = (*checkpoint.warnings, *rows.warnings)
    return CalibrationPlan(
        config, checkpoint, schedule, rows.observed, rows.held_out, warnings, writer
    )


def _check_output(config: CalibrationConfig) -> None:
    output = config.output
    problems = []
    if output.is_dir():
        problems.append("is a directory; name a file, e.g. ranges.json")
    elif output.exists() and not config.force:
        problems.append("exists; pass --force to replace it, or choose another name")
    if not output.absolute().parent.is_dir():
        problems.append(f"can't be written: {output.absolute().parent} is no directory; make it")
    if problems:
        raise UsageError(str(output), *problems)
