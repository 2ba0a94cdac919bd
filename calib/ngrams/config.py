"""Options of `ngrams`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ..data.data import DataConfig


class NGramsConfig(ValidatedConfig):
    """The model, and texts that it wrote or, with data ``self``, writes now.

    ``seed`` is that of the texts that the model writes.
    """

    model: Annotated[str, Option(metavar="MODEL", is_argument=True)] = Field(
        min_length=1, description="opt-125m, …, a hub id, or a directory"
    )
    data: Annotated[DataConfig, Option()]
    output: Annotated[Path, Option("-o", metavar="FILE")] = Field(description="the n-grams, JSON")
    max_length: Annotated[int | None, Option()] = Field(
        default=None,
        ge=2,
        description="prompt + completion (the model's, at most 8192; data self: 512)",
    )
    seed: Annotated[int, Option()] = Field(
        default=0, ge=0, le=2**32 - 1, description="of the texts that the model writes"
    )
    force: Annotated[bool, Option()] = Field(default=False, description="replace --output")
