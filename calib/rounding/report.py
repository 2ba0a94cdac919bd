"""What error-aware rounding found: errors of products, and losses; for JSON and for tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...engines.checking import FrozenModel
from .config import GridTarget

REPORT_NAME = "rounding_report.json"


class RoundedProduct(FrozenModel):
    """One product with int4 weights, on inputs of the float32 model from held-out texts.

    An error is the root of its mean square over that of the exact output, bias included.
    """

    engine: str
    weight: str
    tokens: int = Field(description="held out, of those that run the product")
    nearest_error: float = Field(description="each weight rounded to nearest, as export does it")
    rounded_error: float = Field(description="of the weights that were written")


class RoundedLoss(FrozenModel):
    """Cross-entropy of held-out completions, nats a token, at scheduled depth.

    ``nearest`` and ``rounded`` have all layers and the head in int4, activations in float32.
    """

    texts: int
    tokens: int
    float32: float
    nearest: float
    rounded: float


class RoundingReport(FrozenModel):
    """A finished rounding."""

    model: str
    target: GridTarget
    block_size: int
    schedule: str
    texts: int
    tokens: int = Field(description="that were observed, prompts included")
    head: Literal["gptq", "nearest"] = Field(description="nearest: tied to the embedding, as it is")
    products: tuple[RoundedProduct, ...]
    loss: RoundedLoss
    warnings: tuple[str, ...]
