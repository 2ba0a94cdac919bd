"""What a build is asked to do: compile the canonical engines that a bundle keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from .config import TENSORRT_TARGETS, QuantizationConfig


class BuildConfig(QuantizationConfig):
    """All that decides what `build_bundle` reads and writes.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed. ``BuildConfig.from_json(config.to_json()) == config`` holds for every config.
    """

    bundle: Path = Field(description="exported with --keep-canonical; it is only read")
    output: Path | None = Field(
        default=None, description="None: named after the model, see bundle_build.output_path"
    )
    force: bool = False
    resume: bool = True
    jobs: int = Field(default=1, ge=1, description="engines built at once; memory grows alike")

    def _problems(self) -> Iterator[str]:
        if self.is_compiled:
            yield from super()._problems()
        else:
            yield (
                f"target is {self.target!r}; allowed: {', '.join(TENSORRT_TARGETS)} (engines for "
                "others are made by exporting the model)"
            )
