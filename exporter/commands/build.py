"""``skipdec build``: from a bundle's canonical engines to TensorRT plans, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...engines.host.console import print_json, reports_errors, result_console
from .tensorrt_options import (
    GpuArch,
    HardwareCompatible,
    KvBuckets,
    MaxBatchSize,
    MaxPromptLen,
    OptimizationLevel,
    Ranges,
    TimingCache,
    VersionCompatible,
    Workspace,
    tensorrt_values,
)

if TYPE_CHECKING:
    from ..config import BuildConfig

_EXAMPLES = """
[bold]Examples[/bold]

skipdec export opt-1.3b --fp16 --keep-canonical          (anywhere, with torch)

skipdec build opt-1.3b-fp16.skipdec --target tensorrt    (on the machine with the GPU, no torch)

skipdec build opt-1.3b-fp16.skipdec --target tensorrt-rtx --gpu-arch 8.9 --kv-buckets 512,2048

A build that was interrupted goes on where it stopped when the same command is run again.

Exit codes: 0 built, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in round brackets are the defaults.
"""


def register(app: typer.Typer) -> None:
    """Add ``build`` to ``app``."""
    app.command("build", epilog=_EXAMPLES)(build)


@reports_errors
def build(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="exported with --keep-canonical; only read")
    ],
    target: Annotated[
        Literal["tensorrt", "tensorrt-rtx"], typer.Option("--target", help="what runs the engines")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="(MODEL[-fp16][-int8]-TARGET.skipdec, here)"
        ),
    ] = None,
    quantize: Annotated[
        Literal["none", "int8", "int8-block", "int4", "fp8"],
        typer.Option(help="weights: int8 per channel, fp8 whole, the others in blocks"),
    ] = "none",
    head_quantize: Annotated[
        Literal["none", "int8", "int8-block", "int4", "fp8"] | None,
        typer.Option(help="the head's weights (as --quantize)"),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="weights a scale, int8-block and int4 (128)")
    ] = None,
    max_batch_size: MaxBatchSize = None,
    max_prompt_len: MaxPromptLen = None,
    kv_buckets: KvBuckets = None,
    gpu_arch: GpuArch = None,
    ranges: Ranges = None,
    timing_cache: TimingCache = None,
    builder_optimization_level: OptimizationLevel = None,
    workspace: Workspace = None,
    hardware_compatible: HardwareCompatible = False,
    version_compatible: VersionCompatible = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything and print the plan; write nothing")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace an existing bundle")] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="use what an interrupted build made")
    ] = True,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", help="engines built at once; memory grows too", min=1)
    ] = 1,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="on stderr only warnings and errors")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Compile the canonical engines of BUNDLE with TensorRT to a new bundle; needs no torch."""
    from ..config import BuildConfig

    values: dict[str, Any] = {
        "bundle": bundle,
        "target": target,
        "output": output,
        "quantize": quantize,
        "head_quantize": head_quantize,
        "block_size": block_size,
        "force": force,
        "resume": resume,
        "jobs": jobs,
        "ranges": ranges,
        "tensorrt": tensorrt_values(
            max_batch_size=max_batch_size,
            max_prompt_len=max_prompt_len,
            kv_buckets=kv_buckets,
            gpu_arch=gpu_arch,
            timing_cache=timing_cache,
            optimization_level=builder_optimization_level,
            workspace=workspace,
            hardware_compatible=hardware_compatible,
            version_compatible=version_compatible,
        ),
    }
    config = BuildConfig(**values)
    if dry_run:
        _print_plan(config, as_json=as_json)
    else:
        _build(config, quiet=quiet, as_json=as_json)


def _print_plan(config: BuildConfig, *, as_json: bool) -> None:
    from ..pipeline.build import plan_build
    from .tables import build_plan_table, describe_build_plan

    plan = plan_build(config)
    if as_json:
        print_json(describe_build_plan(plan))
    else:
        result_console().print(build_plan_table(plan))


def _build(config: BuildConfig, *, quiet: bool, as_json: bool) -> None:
    from ...engines.host.progress import ConsoleProgress
    from ..pipeline.build import build_bundle
    from .tables import report_table

    with ConsoleProgress(
        quiet=quiet, advice=lambda: "run the same command again to go on from here"
    ) as progress:
        report = build_bundle(config, progress)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        result_console().print(report_table(report))
