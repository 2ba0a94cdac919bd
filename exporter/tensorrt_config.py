"""What TensorRT is asked for when it compiles engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from ..engines.checking import ValidatedConfig


class TensorRtConfig(ValidatedConfig):
    """The options of the targets ``tensorrt`` and ``tensorrt-rtx``.

    Sizes are limits of the compiled engines: what exceeds them needs another build. Raises
    UsageError, with every problem at once, as all configurations do.
    """

    max_batch_size: int = Field(default=8, ge=1, description="rows of a decode step")
    max_prompt_len: int | None = Field(
        default=None, ge=1, description="tokens a row of a prefill call; None: max_seq_len"
    )
    kv_buckets: tuple[int, ...] | None = Field(
        default=None,
        min_length=1,
        description="KV capacities, ascending; None: 256, 1024, 4096 ... and max_seq_len",
    )
    gpu_arch: str | None = Field(
        default=None, description="compute capability, e.g. 8.9; None: this machine's GPU"
    )
    timing_cache: Path | None = Field(
        default=None, description="kernel timings, read and added to; target tensorrt only"
    )
    optimization_level: int = Field(default=3, ge=0, le=5)
    workspace: int | None = Field(default=None, ge=0, description="bytes of scratch allowed")
    hardware_compatible: bool = False
    version_compatible: bool = False

    def _problems(self) -> Iterator[str]:
        buckets = self.kv_buckets or ()
        if any(capacity < 1 for capacity in buckets):
            yield f"kv_buckets is {_listed(buckets)}; allowed: numbers of at least 1"
        if sorted(set(buckets)) != list(buckets):
            yield (
                f"kv_buckets is {_listed(buckets)}; give each capacity once and in ascending "
                f"order: {_listed(sorted(set(buckets)))}"
            )


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    return ",".join(map(str, numbers))
