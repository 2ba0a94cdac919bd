"""Options of TensorRT's targets: sizes, kernels and the GPUs that will run the plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from ..engines.checking import MemorySize, Option, ValidatedConfig, split_at_commas
from ..engines.manifest import MAX_TOKENS, MAX_WIDTH


class TensorRtConfig(ValidatedConfig):
    """Options of the targets ``tensorrt`` and ``tensorrt-rtx``.

    Sizes are limits of the compiled engines; larger requests need another build. Raises
    UsageError, with every problem at once, like all configurations.
    """

    max_batch_size: Annotated[int, Option()] = Field(
        default=8, ge=1, le=MAX_WIDTH, description="rows of a decode step of TensorRT's plans"
    )
    max_prompt_len: int | None = Field(
        default=None, ge=1, description="tokens per row of a prefill call (max_seq_len)"
    )
    kv_buckets: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_TOKENS)], ...] | None,
        BeforeValidator(split_at_commas),
    ] = Field(
        default=None,
        min_length=1,
        description="KV capacities, ascending, a plan for each; a request uses the smallest that "
        "fits (256,1024,… and max_seq_len)",
    )
    gpu_arch: Annotated[str | None, Option(metavar="8.9")] = Field(
        default=None,
        description="compute capability to build for, tensorrt-rtx only (this machine's GPU)",
    )
    timing_cache: Path | None = Field(
        default=None, description="kernel timings to read and add to, tensorrt only"
    )
    optimization_level: int = Field(default=3, ge=0, le=5, description="0 quick to 5 thorough")
    workspace: MemorySize | None = Field(
        default=None, lt=1 << 63, description="scratch memory that kernels may use (no limit)"
    )
    hardware_compatible: bool = Field(
        default=False, description="run on other GPUs from 8.0 on, tensorrt only"
    )
    version_compatible: bool = Field(
        default=False, description="run on later minor versions, tensorrt only"
    )

    def _problems(self) -> Iterator[str]:
        buckets = self.kv_buckets or ()
        if sorted(set(buckets)) != list(buckets):
            yield (
                f"`kv_buckets` is {_listed(buckets)}; list each capacity once and in ascending "
                f"order: {_listed(sorted(set(buckets)))}"
            )


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    return ",".join(map(str, numbers))
