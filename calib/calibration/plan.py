"""Everything that a calibration needs, opened and checked before any layer runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from ...engines.bundle import EngineBundle
from ...engines.checking import Problems
from ...engines.errors import UsageError
from ...exporter.config import CheckpointSource, LoadFormat
from ..layerwise.plan import LayerwiseConfig, LayerwisePlan, open_texts
from ..layerwise.rows import RowCounts
from .generation import check_room, open_writer
from .histogram import RangeMethod


class CalibrationConfig(LayerwiseConfig):
    """What to calibrate, on what, and how.

    Observed rows give the ranges, held-out ones the losses; the first ``num_by_layer`` of these
    also show what each layer alone costs.
    """

    load_format: LoadFormat = "auto"
    method: RangeMethod = "percentile"
    percentile: float | None = Field(default=None, ge=50, le=100, description="None: 99.9")
    migrate: float | None = Field(
        default=None, ge=0, le=1, description="alpha of SmoothQuant; None: nothing is migrated"
    )
    generate_with: Path | None = Field(
        default=None, description="bundle that writes the completions; None: the data's"
    )
    generate_tokens: int | None = Field(
        default=None, ge=1, description="most of each such completion; None: 64"
    )
    num_by_layer: int = Field(default=16, ge=0)

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
    def source(self) -> CheckpointSource:
        """The checkpoint."""
        return CheckpointSource(model=self.model, load_format=self.load_format)

    @property
    def rows(self) -> RowCounts:
        """With the length of completions that are to be generated."""
        return replace(super().rows, completion_tokens=self.completion_tokens)


@dataclass(frozen=True)
class CalibrationPlan(LayerwisePlan):
    """Where there is a ``writer``, it has yet to write the completions of ``observed``."""

    config: CalibrationConfig
    writer: EngineBundle | None = None

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

    Raises one SkipDecError with every problem found: an output that exists, what ``open_texts``
    finds, a bundle of another model, prompts that leave no room for what is to be generated.
    """
    problems = Problems("calibrate")
    problems.attempt(_check_output, config)
    opened = open_texts(config, problems)
    writer = None
    if config.generate_with is not None:
        writer = problems.attempt(open_writer, config.generate_with, opened.checkpoint)
    if writer is not None and opened.data is not None and config.completion_tokens is not None:
        observed, _ = config.rows.split(opened.data.examples)
        problems.attempt(check_room, observed, config.completion_tokens, writer)
    return replace(opened.plan(CalibrationPlan), writer=writer)


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
