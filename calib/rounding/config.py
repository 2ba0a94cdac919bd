"""Options of a rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...engines.checking import Option
from ...exporter.quantization_config import DEFAULT_BLOCK_SIZE, block_size_problems
from ..layerwise.config import LayerwiseConfig

GridTarget = Literal["onnxruntime", "tensorrt"]


class RoundingConfig(LayerwiseConfig):
    """Options of ``round_weights``: model, data, target and grid.

    The activations of observed rows determine the rounding; others measure errors and losses.
    """

    output: Annotated[Path, Option("-o", metavar="DIR")] = Field(
        description="the checkpoint to write"
    )
    target: Annotated[GridTarget, Option()] = Field(
        default="onnxruntime", description="its codes: -8 to 7, or -7 to 7"
    )
    block_size: Annotated[int, Option()] = Field(
        default=DEFAULT_BLOCK_SIZE, description="inputs that share a scale, as in export"
    )
    untie_head: Annotated[bool, Option()] = Field(
        default=False, description="round a tied head as well; embeddings stay exact"
    )
    damping: Annotated[float, Option()] = Field(
        default=0.01, gt=0, le=1, description="weight of directions unused by the texts"
    )
    force: Annotated[bool, Option()] = Field(
        default=False, description="replace --output, if a rounding wrote it"
    )

    def _problems(self) -> Iterator[str]:
        yield from block_size_problems(self.block_size)
