"""Options of a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...engines.checking import Option
from ...exporter.config import CheckpointSource, LoadFormat
from ..layerwise.config import LayerwiseConfig


class CalibrationConfig(LayerwiseConfig):
    """Options of ``calibrate``: model, schedule, data and how ranges are chosen.

    A range is the ``percentile`` of the magnitudes of an input; 100 is their maximum.
    """

    output: Annotated[Path, Option("-o", metavar="FILE")] = Field(description="the ranges, JSON")
    load_format: Annotated[LoadFormat, Option()] = Field(
        default="auto", description="format of the checkpoint's weights; dummy: random weights"
    )
    percentile: Annotated[float, Option()] = Field(
        default=99.9, ge=50, le=100, description="of the magnitudes of an input; 100: the maximum"
    )
    migrate: Annotated[float | None, Option(metavar="ALPHA")] = Field(
        default=None,
        ge=0,
        le=1,
        description="SmoothQuant's alpha, 0 to 1, often 0.5: move outliers into weights (off)",
    )

    @property
    def source(self) -> CheckpointSource:
        """The checkpoint."""
        return CheckpointSource(model=self.model, load_format=self.load_format)
