"""Open and check everything that a calibration needs before any layer runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...engines.bundle import EngineBundle
from ...engines.checking import Problems
from ...engines.errors import UsageError
from ..layerwise.plan import LayerwisePlan, open_texts
from ..layerwise.rows import split_rows
from .config import CalibrationConfig
from .generation import check_room, open_writer


@dataclass(frozen=True)
class CalibrationPlan(LayerwisePlan):
    """A checked calibration; ``writer``, if set, has yet to complete the ``observed`` texts."""

    config: CalibrationConfig
    writer: EngineBundle | None = None

    @property
    def summary(self) -> str:
        """One-line summary of the work."""
        source = "" if self.writer is None else f" (completions by {self.writer.path.name})"
        return (
            f"{self.model.name}: {len(self.observed)} texts for the ranges{source}, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_calibration(config: CalibrationConfig) -> CalibrationPlan:
    """Read the data, open the checkpoint and parse the schedule; no weights are read.

    Raises one SkipDecError with every problem found: an output that exists, anything ``open_texts``
    finds, a bundle of another model, prompts that leave no room for the completions to generate.
    """
    problems = Problems("calibrate")
    problems.attempt(_check_output, config)
    opened = open_texts(config, problems)
    writer = None
    if config.generate_with is not None:
        writer = problems.attempt(open_writer, config.generate_with, opened.checkpoint)
    if writer is not None and opened.data is not None and config.completion_tokens is not None:
        observed, _ = split_rows(opened.data.examples, config)
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
        problems.append(f"can't be written: {output.absolute().parent} is not a directory; make it")
    if problems:
        raise UsageError(str(output), *problems)
