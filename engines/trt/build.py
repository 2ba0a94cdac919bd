"""Compilation and checking of a TensorRT plan in a child process, as the builder may crash."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..errors import EngineBuildError, EnvironmentMismatchError
from ..host.gpus import survey_gpus
from ..host.signals import signal_name
from ..host.worker import Worker, WorkerCrashError
from ..manifest import TensorSpec
from .library import TensorRtTarget, load_library

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
"""The minimum, optimum and maximum shape of each input, by name."""

OnProgress = Callable[[str, int, int], None]

_WORKER = f"{__package__}.build_worker"


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )


class BuildOptions(_Model):
    """Options that all engines of a bundle share."""

    target: TensorRtTarget
    compute_capability: str | None = Field(
        default=None, description="GPU to build for, e.g. 8.9; None: this machine's"
    )
    optimization_level: int = Field(default=3, ge=0, le=5)
    workspace: int | None = Field(default=None, ge=0, description="bytes of scratch allowed")
    hardware_compatible: bool = False
    version_compatible: bool = False
    timing_cache: Path | None = Field(default=None, description="file shared by all builds")


class PlanRequest(_Model):
    """One engine to build.

    ``graph`` is a serialised ONNX model whose weights are in files beside ``weights_path`` (which
    need not exist). ``inputs`` and ``outputs`` describe the required network, with a symbol for
    each dynamic dimension; ``expected_layers`` has required numbers of layers by type, e.g.
    ``{"KV_CACHE_UPDATE": 2, "ATTENTION_INPUT": 1}``.
    """

    engine: str
    graph: bytes = Field(repr=False)
    weights_path: Path
    profiles: tuple[Profile, ...] = Field(min_length=1)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    expected_layers: dict[str, int] = Field(default_factory=dict)
    options: BuildOptions


class PlanReport(_Model):
    """The result of a request."""

    engine: str
    plan_size: int  # bytes
    seconds: float
    layer_counts: dict[str, int]  # of the parsed network, by TensorRT's layer type
    version: str  # of TensorRT
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class BuilderFacts:
    """Capabilities of this machine as a builder for ``target``."""

    version: str  # of TensorRT
    gpu: str | None  # None without a GPU
    compute_capability: str | None  # of that GPU, e.g. 9.0
    driver: str | None  # newest CUDA that the driver supports, e.g. 13.0
    compute_capabilities: tuple[str, ...]  # that plans can be built for without such a GPU


def check_options(options: BuildOptions) -> BuilderFacts:
    """Check that this machine can build with ``options``, before anything is built.

    Raises EnvironmentMismatchError listing everything unsupported, and as ``load_library``.
    """
    library, survey = load_library(options.target), survey_gpus()
    gpu = survey.gpus[0] if survey.gpus else None
    facts = BuilderFacts(
        version=library.version,
        gpu=gpu.name if gpu else None,
        compute_capability=gpu.compute_capability if gpu else None,
        driver=survey.cuda,
        compute_capabilities=tuple(library.compute_capabilities),
    )
    if problems := [*_gpu_problems(options, facts), *_compatibility_problems(options)]:
        raise EnvironmentMismatchError(f"target {options.target}", *problems)
    return facts


def build_plan(
    request: PlanRequest, output: Path, on_progress: OnProgress | None = None
) -> PlanReport:
    """Build ``request`` in a child process and write the checked plan to ``output``.

    ``on_progress(phase, step, steps)`` is called during the build; if it raises, or the call is
    interrupted, the child is killed and no file is left. ``output`` is replaced atomically. Raises
    EngineBuildError, naming the engine, if parser or builder reject the graph, the network differs
    from the request, or the child dies of a signal. The caller has called ``check_options``.
    """

    def forward(content: list[Any]) -> None:
        if on_progress is not None:
            on_progress(*content)

    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as directory:
        plan = Path(directory) / output.name
        try:
            with Worker(_WORKER, [str(plan)]) as worker:
                report = worker.run(request.model_dump_json(), forward)
        except WorkerCrashError as crash:
            raise _crashed(request.engine, crash) from None
        plan.replace(output)
    return PlanReport.model_validate(report)


_NO_GPU = "needs the GPU that it builds for, and this machine has none"
_INSTEAD = "on other GPUs use --target onnxruntime, which runs on CUDA, or --target tensorrt"


def _gpu_problems(options: BuildOptions, facts: BuilderFacts) -> list[str]:
    wanted, present, known = (
        options.compute_capability,
        facts.compute_capability,
        facts.compute_capabilities,
    )
    if not known:
        return _own_gpu_problems(wanted, present)
    allowed = ", ".join(known)
    if wanted is None and present is None:
        return [f"{_NO_GPU}; name the GPU to build for: {allowed}"]
    if (wanted or present) in known:
        return []
    if wanted is not None:
        return [f"compute capability {wanted!r} can't be built for; allowed: {allowed}; {_INSTEAD}"]
    return [
        f"does not run on this machine's {facts.gpu} of compute capability {present}; allowed: "
        f"{allowed}; {_INSTEAD}, or name another GPU to build for"
    ]


def _own_gpu_problems(wanted: str | None, present: str | None) -> list[str]:
    """Return problems of a library that builds only for this machine's GPU."""
    if wanted is None:
        return [] if present is not None else [_NO_GPU]
    if wanted == present:
        return []
    here = f"this machine's has {present}" if present else "this machine has none"
    return [
        f"builds only for the GPU of the machine that it runs on; compute capability {wanted} "
        f"was asked for, {here}; build there"
    ]


def _compatibility_problems(options: BuildOptions) -> Iterator[str]:
    if options.target == "tensorrt-rtx" and options.hardware_compatible:
        yield "does not support hardware-compatible plans; build one for each compute capability"
    if options.target == "tensorrt-rtx" and options.version_compatible:
        yield (
            "does not support version-compatible plans, as its packages hold no lean runtime; "
            "build again with each version"
        )


def _crashed(engine: str, crash: WorkerCrashError) -> EngineBuildError:
    if crash.code == -signal.SIGKILL:
        problem = "the builder was killed (SIGKILL), as happens when memory runs out; lower --jobs"
    elif crash.code < 0:
        problem = f"the builder crashed ({signal_name(-crash.code)}) on this graph"
    else:
        problem = f"the building process ended with code {crash.code}"
    return EngineBuildError(f"engine {engine}", crash.describe(problem))
