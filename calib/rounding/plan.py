"""Everything that error-aware rounding needs, opened and checked before any layer runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.checking import Problems
from ...engines.errors import UsageError
from ...engines.manifest import EngineKind, ModelSpec
from ...exporter.architecture.architecture import engine_parameters
from ...exporter.architecture.weights import engine_name
from ..layerwise.plan import LayerwisePlan, open_texts
from .config import RoundingConfig
from .files import rounded_place


@dataclass(frozen=True)
class RoundingPlan(LayerwisePlan):
    """Which of the checkpoint's parts the result will have of its own."""

    config: RoundingConfig

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

    Raises one SkipDecError with every problem found: an output that exists, a head
    that can't be untied, and what ``open_texts`` finds.
    """
    problems = Problems("round")
    problems.attempt(rounded_place(config.output).check, force=config.force)
    opened = open_texts(config, problems)
    problems.attempt(_check_structure, config, opened.checkpoint.model)
    return opened.plan(RoundingPlan)


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
            if parameter.is_product and parameter.shape[0] % config.block_size
        ]
    if problems:
        raise UsageError(config.model, *problems)
