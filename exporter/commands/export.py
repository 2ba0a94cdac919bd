"""``skipdec export``: from a checkpoint to a verified bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...engines.host.console import print_json, reports_errors, result_console, stderr_console
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
    from ..config import ExportConfig

_EXAMPLES = """
[bold]Examples[/bold]

skipdec export opt-1.3b --quantize int8

skipdec export opt-1.3b --fp16 --schedule 2x:horizon=64 -o opt-1.3b.skipdec

skipdec export ./my-checkpoint --quantize int4 --head-quantize int8 --max-seq-len 512

skipdec export opt-1.3b --fp16 --target tensorrt-rtx --gpu-arch 8.9 --max-batch-size 16

skipdec export opt-66b --load-format dummy --dry-run

An export that was interrupted goes on where it stopped when the same command is run again.

Exit codes: 0 exported and verified, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in round brackets are the defaults.
"""
_CHECKPOINT, _FORMAT, _RUN = "Checkpoint", "Bundle", "Running"


def register(app: typer.Typer) -> None:
    """Add ``export`` to ``app``."""
    app.command("export", epilog=_EXAMPLES)(export)


def _option(panel: str, *names: str, text: str, **options: Any) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@reports_errors
def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="opt-125m, opt-350m, opt-1.3b, opt-2.7b, opt-6.7b, opt-13b, opt-30b, opt-66b, "
            "a hub id, or a directory with config.json",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="(MODEL[-fp16][-int8][-TARGET].skipdec)"
        ),
    ] = None,
    load_format: Annotated[
        Literal["auto", "safetensors", "bin", "dummy"],
        _option(_CHECKPOINT, "--load-format", text="dummy: random weights, no download"),
    ] = "auto",
    revision: Annotated[
        str | None, _option(_CHECKPOINT, "--revision", text="branch, tag or commit on the hub")
    ] = None,
    local_files_only: Annotated[
        bool, _option(_CHECKPOINT, "--local-files-only", text="use the cache, never the network")
    ] = False,
    seed: Annotated[
        int, _option(_CHECKPOINT, "--seed", text="of dummy weights and verification", min=0)
    ] = 0,
    fp16: Annotated[bool, _option(_FORMAT, "--fp16", text="the same as --dtype float16")] = False,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        _option(_FORMAT, "--dtype", text="of activations, KV cache, float weights (float32)"),
    ] = None,
    quantize: Annotated[
        Literal["none", "int8", "int8-block", "int4", "fp8"],
        _option(
            _FORMAT, "--quantize", text="weights: int8 per channel, fp8 whole, others in blocks"
        ),
    ] = "none",
    head_quantize: Annotated[
        Literal["none", "int8", "int8-block", "int4", "fp8"] | None,
        _option(_FORMAT, "--head-quantize", text="the head's weights (as --quantize)"),
    ] = None,
    block_size: Annotated[
        int | None,
        _option(_FORMAT, "--block-size", text="weights a scale, int8-block and int4 (128)"),
    ] = None,
    accuracy_level: Annotated[
        int | None,
        _option(_FORMAT, "--accuracy-level", text="in blocks: 0 exact, 4 int8 products (4)"),
    ] = None,
    int8_weight_bits: Annotated[
        int | None,
        _option(_FORMAT, "--int8-weight-bits", text="8, or 7 for CPUs without VNNI (this CPU's)"),
    ] = None,
    target: Annotated[
        str,
        _option(
            _FORMAT, "--target", text="what runs the engines: onnxruntime, tensorrt, tensorrt-rtx"
        ),
    ] = "onnxruntime",
    max_seq_len: Annotated[
        int | None,
        _option(_FORMAT, "--max-seq-len", text="prompt + completion (the model's)", min=1),
    ] = None,
    schedule: Annotated[
        str | None,
        _option(
            _FORMAT,
            "--schedule",
            metavar="SPEC",
            text="full, 2x:horizon=64, linear:max=16,min=8,… or a file (the checkpoint's, or full)",
        ),
    ] = None,
    keep_canonical: Annotated[
        bool, _option(_FORMAT, "--keep-canonical", text="keep the standard ONNX graphs too")
    ] = False,
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
        bool, _option(_RUN, "--dry-run", text="check everything and print the plan; write nothing")
    ] = False,
    force: Annotated[bool, _option(_RUN, "--force", text="replace an existing bundle")] = False,
    resume: Annotated[
        bool, _option(_RUN, "--resume/--no-resume", text="use what an interrupted export built")
    ] = True,
    verify: Annotated[
        bool, _option(_RUN, "--verify/--no-verify", text="hold the bundle against the checkpoint")
    ] = True,
    verify_memory: Annotated[
        str,
        _option(_RUN, "--verify-memory", metavar="SIZE", text="for the whole reference model"),
    ] = "8GiB",
    atol: Annotated[
        float | None, _option(_RUN, "--atol", text="tolerance of verification (by precision)")
    ] = None,
    jobs: Annotated[
        int, _option(_RUN, "-j", "--jobs", text="engines built at once; memory grows too", min=1)
    ] = 1,
    verbose: Annotated[
        bool, _option(_RUN, "-v", "--verbose", text="also the configuration and every check")
    ] = False,
    quiet: Annotated[
        bool, _option(_RUN, "-q", "--quiet", text="on stderr only warnings and errors")
    ] = False,
    as_json: Annotated[bool, _option(_RUN, "--json", text="print the report as JSON")] = False,
) -> None:
    """Compile an OPT checkpoint layer by layer to a bundle of engines, and verify it."""
    from ...engines.errors import UsageError
    from ...engines.host.console import parse_memory_size
    from ..config import ExportConfig

    if fp16 and dtype not in (None, "float16"):
        raise UsageError("--fp16", f"contradicts --dtype {dtype}; give one of them")
    if verbose and quiet:
        raise UsageError("-v", "contradicts -q; give one of them")
    values: dict[str, Any] = {
        "model": model,
        "output": output,
        "load_format": load_format,
        "revision": revision,
        "local_files_only": local_files_only,
        "seed": seed,
        "dtype": "float16" if fp16 else dtype or "float32",
        "quantize": quantize,
        "head_quantize": head_quantize,
        "block_size": block_size,
        "accuracy_level": accuracy_level,
        "int8_weight_bits": int8_weight_bits,
        "target": target,
        "max_seq_len": max_seq_len,
        "schedule": schedule,
        "keep_canonical": keep_canonical,
        "force": force,
        "resume": resume,
        "verify": verify,
        "verify_memory": parse_memory_size(verify_memory, "--verify-memory"),
        "atol": atol,
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
    config = ExportConfig(**values)
    if dry_run:
        _print_plan(config, as_json=as_json)
    else:
        _export(config, verbose=verbose, quiet=quiet, as_json=as_json)


def _print_plan(config: ExportConfig, *, as_json: bool) -> None:
    from ...engines.host.progress import ConsoleProgress
    from ..pipeline.plan import plan_export
    from .tables import describe_plan, plan_table

    plan = plan_export(config)
    if as_json:
        print_json(describe_plan(plan))
        return
    ConsoleProgress().planned("", plan.warnings)
    result_console().print(plan_table(plan))


def _export(config: ExportConfig, *, verbose: bool, quiet: bool, as_json: bool) -> None:
    from ...engines.host.progress import ConsoleProgress
    from ..pipeline.export import export as run_export
    from .tables import report_table

    if verbose:
        stderr_console().print_json(config.to_json())
    with ConsoleProgress(
        quiet=quiet,
        verbose=verbose,
        advice=lambda: "run the same command again to go on from here",
    ) as progress:
        report = run_export(config, progress)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        result_console().print(report_table(report))
