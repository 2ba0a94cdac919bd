"""The command-line options of TensorRT's targets, the same for ``export`` and ``build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_PANEL = "TensorRT (targets tensorrt and tensorrt-rtx)"


def _option(*names: str, text: str, **options: Any) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(*names, help=text, rich_help_panel=_PANEL, **options)


MaxBatchSize = Annotated[
    int | None, _option("--max-batch-size", text="rows of a decode step (8)", min=1)
]
MaxPromptLen = Annotated[
    int | None,
    _option("--max-prompt-len", text="tokens a row of a prefill call (max_seq_len)", min=1),
]
KvBuckets = Annotated[
    str | None,
    _option(
        "--kv-buckets",
        metavar="T,T,…",
        text="KV capacities, a plan each; a request takes the smallest that holds it "
        "(256,1024,… and max_seq_len)",
    ),
]
GpuArch = Annotated[
    str | None,
    _option(
        "--gpu-arch",
        metavar="8.9",
        text="compute capability to build for, tensorrt-rtx only (this machine's GPU)",
    ),
]
Ranges = Annotated[
    Path | None,
    _option(
        "--ranges",
        metavar="FILE",
        text="of skipdec calibrate: int8 products and fp8; factors, int8 of any target",
    ),
]
TimingCache = Annotated[
    Path | None,
    _option(
        "--timing-cache", metavar="FILE", text="kernel timings to read and add to, tensorrt only"
    ),
]
OptimizationLevel = Annotated[
    int | None,
    _option("--builder-optimization-level", text="0 quick to 5 thorough (3)", min=0, max=5),
]
Workspace = Annotated[
    str | None,
    _option("--workspace", metavar="SIZE", text="scratch memory that kernels may use (no limit)"),
]
HardwareCompatible = Annotated[
    bool, _option("--hardware-compatible", text="run on other GPUs from 8.0 on, tensorrt only")
]
VersionCompatible = Annotated[
    bool, _option("--version-compatible", text="run on later minor versions, tensorrt only")
]


def tensorrt_values(
    *,
    kv_buckets: str | None,
    workspace: str | None,
    **options: Any,  # noqa: ANN401
) -> dict[str, Any] | None:
    """The fields of TensorRtConfig that were given; None if none was.

    Raises UsageError for buckets or a size that can't be read.
    """
    from ...engines.host.console import parse_memory_size

    values = {name: value for name, value in options.items() if value not in (None, False)}
    if kv_buckets is not None:
        values["kv_buckets"] = _parse_buckets(kv_buckets)
    if workspace is not None:
        values["workspace"] = parse_memory_size(workspace, "--workspace")
    return values or None


def _parse_buckets(text: str) -> tuple[int, ...]:
    from ...engines.errors import UsageError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError("--kv-buckets", f"is {text!r}; give capacities such as 256,1024,2048")
    return tuple(map(int, words))
