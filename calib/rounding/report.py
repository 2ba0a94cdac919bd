"""Result of error-aware rounding, for JSON and for tables: errors of products, losses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...engines.checking import FrozenModel
from .config import GridTarget

REPORT_NAME = "rounding_report.json"


class RoundedProduct(FrozenModel):
    """Errors of one product with int4 weights, on the float32 model's inputs from held-out texts.

    Each error is a root mean square relative to that of the exact output, bias included.
    """

    engine: str
    weight: str
    tokens: int = Field(description="held-out tokens that ran the product")
    nearest_error: float = Field(description="weights rounded to nearest, as export does")
    rounded_error: float = Field(description="the weights that were written")


class RoundedLoss(FrozenModel):
    """Cross-entropy of held-out completions at scheduled depth, in nats per token.

    ``nearest`` and ``rounded`` have all layers and the head in int4, activations in float32.
    """

    texts: int
    tokens: int
    float32: float
    nearest: float
    rounded: float


class RoundingReport(FrozenModel):
    """Report of a finished rounding."""

    model: str
    target: GridTarget
    block_size: int
    schedule: str
    texts: int
    tokens: int = Field(description="observed, prompts included")
    head: Literal["gptq", "nearest"] = Field(description="nearest: tied to the embedding")
    products: tuple[RoundedProduct, ...]
    loss: RoundedLoss
    warnings: tuple[str, ...]
