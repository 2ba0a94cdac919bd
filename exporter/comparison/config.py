"""The configuration of a comparison: a frozen value with a JSON round trip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig


class CompareConfig(ValidatedConfig):
    """The engines that `compare` runs, and the reference (``against``).

    Raises UsageError, with every problem at once, like all configurations.

    >>> CompareConfig(bundle="opt-1.3b-int8.skipdec", against="opt-1.3b.skipdec").seed
    0
    """

    bundle: Annotated[Path, Option(metavar="BUNDLE", is_argument=True)] = Field(
        description="a bundle's directory"
    )
    against: Annotated[str | None, Option(metavar="SIDE")] = Field(
        default=None,
        description="canonical, onnxruntime:LEVEL (disabled, basic, extended, all) or another "
        "bundle's directory (canonical where it is kept, else onnxruntime:disabled)",
    )
    layers: Annotated[tuple[int, ...], Option("--layer", metavar="N")] = Field(
        default=(), description="only this layer, from 0 on; may be repeated (all engines)"
    )
    seed: Annotated[int, Option()] = Field(default=0, ge=0, description="seed of the random inputs")
    atol: Annotated[float | None, Option()] = Field(
        default=None,
        gt=0,
        description="largest difference, as a fraction of the largest value (by precision)",
    )
