"""Everything that error-aware rounding needs, opened and checked before any layer runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from ...engines.checking import Problems, ValidatedConfig
from ...engines.errors import UsageError
from ...engines.manifest import EngineKind, ModelSpec
from ...exporter.architecture.weights import engine_name, engine_parameters
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ...exporter.checkpoint.hub import locate
from ...exporter.config import DEFAULT_BLOCK_SIZE, ExportConfig
from ...exporter.quantization.quantize import QUANTIZED_PARAMETERS
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..data.data import DataConfig
from ..data.tokenised import TokenisedExample
from ..layerwise.rows import RowCounts, cut_off, draw_rows, schedule_of, tokenise_rows
from .files import check_output
from .grid import GridTarget


class RoundingConfig(ValidatedConfig):
    """Which weights to round, for which target, on what data.

    Rows are drawn by ``seed``: ``num_examples`` whose activations decide, then ``num_held_out``
    others for errors and losses.
    """

    model: str = Field(min_length=1, description="opt-125m ... opt-66b, a hub id or a directory")
    data: DataConfig
    output: Path
    target: GridTarget = Field(default="onnxruntime", description="whose int4 codes")
    block_size: int = Field(default=DEFAULT_BLOCK_SIZE, description="inputs that share a scale")
    untie_head: bool = Field(default=False, description="give a tied head weights of its own")
    schedule: str | None = Field(default=None, description="None: the checkpoint's, else full")
    num_examples: int = Field(default=128, ge=1)
    num_held_out: int = Field(default=64, ge=1)
    max_tokens: int = Field(default=1 << 15, ge=1, description="of both parts: bounds memory")
    batch_tokens: int = Field(default=1024, ge=1, description="that run a layer at once")
    damping: float = Field(default=0.01, gt=0, le=1, description="of the mean squared input")
    seed: int = Field(default=0, ge=0)
    force: bool = False

    @property
    def rows(self) -> RowCounts:
        """What to draw from the data."""
        return RowCounts(self.num_examples, self.num_held_out, self.max_tokens, self.seed)

    @property
    def export(self) -> ExportConfig:
        """How the result is meant to be exported. Raises UsageError for a wrong block size."""
        return ExportConfig(
            model=self.model, target=self.target, quantize="int4", block_size=self.block_size
        )


@dataclass(frozen=True)
class RoundingPlan:
    """The opened checkpoint, where it lies, its schedule, and the texts.

    ``warnings`` are for people.
    """

    config: RoundingConfig
    checkpoint: Checkpoint
    directory: Path
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

    @property
    def has_schedule(self) -> bool:
        """Whether a schedule was given or brought along, which the result shall bring along."""
        brought = self.checkpoint.schedule_document is not None
        return brought or self.config.schedule is not None

    @property
    def rounds_head(self) -> bool:
        """Whether the head has weights of its own to round, before or after."""
        return self.config.untie_head or not self.model.tie_word_embeddings

    @property
    def summary(self) -> str:
        """What is rounded on what, in a line."""
        return (
            f"{self.model.name}: int4 of {self.config.target} in blocks of "
            f"{self.config.block_size}, {len(self.observed)} texts to round on, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_rounding(config: RoundingConfig) -> RoundingPlan:
    """Read the data, open the checkpoint, parse the schedule; no weight is read.

    Raises one SkipDecError with every problem found: an output that exists, a wrong block size, bad
    lines of the data, too few of them, prompts longer than the model, a schedule of another depth.
    """
    problems = Problems("round")
    problems.attempt(check_output, config.output, force=config.force)
    problems.attempt(lambda: config.export)
    drawn = problems.attempt(draw_rows, config.data, config.rows)
    source = ExportConfig(model=config.model)
    checkpoint = problems.attempt(open_checkpoint, source)
    if checkpoint is None:
        raise problems.error()
    problems.attempt(_check_structure, config, checkpoint.model)
    data = (
        None if drawn is None else problems.attempt(tokenise_rows, checkpoint, drawn, config.data)
    )
    schedule = problems.attempt(schedule_of, checkpoint, config.schedule, data)
    if data is None or schedule is None or problems.errors:
        raise problems.error()
    rows = cut_off(data, config.rows)
    warnings = (*checkpoint.warnings, *rows.warnings)
    directory = locate(source).path
    return RoundingPlan(
        config, checkpoint, directory, schedule, rows.observed, rows.held_out, warnings
    )


def _check_structure(config: RoundingConfig, model: ModelSpec) -> None:
    problems = []
    if config.untie_head and not model.tie_word_embeddings:
        problems.append("the head has weights of its own already; leave --untie-head out")
    if config.target == "tensorrt":
        kinds = ((EngineKind.LAYER, 0), (EngineKind.HEAD, None))
        problems += [
            f"{engine_name(kind, index)}'s {parameter.name} has {parameter.shape[0]} inputs, which "
            f"blocks of {config.block_size} do not divide; choose another --block-size"
            for kind, index in kinds
            for parameter in engine_parameters(kind, model, index)
            if parameter.name in QUANTIZED_PARAMETERS[kind]
            and parameter.shape[0] % config.block_size
        ]
    if problems:
        raise UsageError(config.model, *problems)
