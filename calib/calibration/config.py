"""Options of a calibration: one frozen value with a JSON round trip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...engines.checking import Option
from ...exporter.config import CheckpointSource, LoadFormat
from ..layerwise.config import LayerwiseConfig

RangeMethod = Literal["max", "percentile", "mse"]

_RANGES = Option(panel="Ranges")


class CalibrationConfig(LayerwiseConfig):
    """Options of ``calibrate``: model, schedule, data and how ranges are chosen.

    The first ``num_by_layer`` held-out rows also show the loss of each layer alone in int8.
    """

    output: Annotated[Path, Option("-o", metavar="FILE")] = Field(description="the ranges, JSON")
    load_format: Annotated[LoadFormat, Option()] = Field(
        default="auto", description="format of the checkpoint's weights; dummy: random weights"
    )
    method: Annotated[RangeMethod, _RANGES] = Field(
        default="percentile", description="mse: the range with the smallest int8 error"
    )
    percentile: Annotated[float | None, _RANGES] = Field(
        default=None, ge=50, le=100, description="percentile of --method percentile (99.9)"
    )
    migrate: Annotated[float | None, Option(panel="Ranges", metavar="ALPHA")] = Field(
        default=None,
        ge=0,
        le=1,
        description="SmoothQuant's alpha, 0 to 1, often 0.5: move outliers into weights (off)",
    )
    generate_with: Annotated[Path | None, Option(panel="Ranges", metavar="BUNDLE")] = Field(
        default=None,
        description="exported from MODEL; generates the completions (the data's)",
    )
    generate_tokens: Annotated[int | None, _RANGES] = Field(
        default=None, ge=1, description="maximum length of such a completion (64)"
    )
    num_by_layer: Annotated[int, Option("--by-layer", panel="Losses")] = Field(
        default=16, ge=0, description="held-out texts to run with one layer alone in int8"
    )

    def _problems(self) -> Iterator[str]:
        if self.percentile is not None and self.method != "percentile":
            yield f"`percentile` is {self.percentile} but `method` is {self.method}; leave it out"
        if self.generate_tokens is not None and self.generate_with is None:
            yield (
                f"`generate_tokens` is {self.generate_tokens} but completions come from the data; "
                "leave it out, or set `generate_with`"
            )
        if self.num_by_layer > self.num_held_out:
            yield (
                f"`num_by_layer` is {self.num_by_layer}; allowed: at most `num_held_out`, "
                f"{self.num_held_out}"
            )

    @property
    def percentage(self) -> float:
        """``percentile`` or its default."""
        return 99.9 if self.percentile is None else self.percentile

    @property
    def completion_tokens(self) -> int | None:
        """Maximum length of a generated completion; None if completions come from the data."""
        return None if self.generate_with is None else self.generate_tokens or 64

    @property
    def source(self) -> CheckpointSource:
        """The checkpoint."""
        return CheckpointSource(model=self.model, load_format=self.load_format)
