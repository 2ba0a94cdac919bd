"""Options shared by calibrate and round: model, schedule, and the rows to draw."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ...exporter.config import CheckpointSource
from ..data.data import DataConfig


class LayerwiseConfig(ValidatedConfig):
    """The model, its schedule, and the rows of data to run through its layers.

    Rows are drawn by ``seed``: ``num_examples`` to observe, then ``num_held_out`` others.
    """

    model: Annotated[str, Option(metavar="MODEL", is_argument=True)] = Field(
        min_length=1, description="opt-125m, …, a hub id, or a directory"
    )
    data: Annotated[DataConfig, Option()]
    seed: Annotated[int, Option()] = Field(default=0, ge=0, description="draws the rows")
    num_examples: Annotated[int, Option("--examples")] = Field(
        default=128, ge=1, description="texts to observe"
    )
    num_held_out: Annotated[int, Option("--held-out")] = Field(
        default=64, ge=1, description="other texts, for errors and losses"
    )
    max_tokens: Annotated[int, Option()] = Field(
        default=1 << 15, ge=1, description="total of all texts; bounds memory"
    )
    batch_tokens: int = Field(default=1024, ge=1, description="per run of a layer")
    schedule: Annotated[str | None, Option(metavar="SPEC")] = Field(
        default=None, description="2x, … (the checkpoint's own, else full)"
    )
    force: Annotated[bool, Option()] = Field(default=False, description="replace --output")

    @property
    def source(self) -> CheckpointSource:
        """The checkpoint; ``seed`` draws rows, not weights."""
        return CheckpointSource(model=self.model)

    @property
    def observed_share(self) -> float:
        """Share of the drawn rows that are observed."""
        return self.num_examples / (self.num_examples + self.num_held_out)
