"""The figures that skipdec holds itself to on a CPU, measured at real model sizes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dummy_checkpoint import FileFormat, write_dummy_checkpoint
from bench.process import run_measured, skipdec_command
from bench.stitching import StitchingBench
from skipdec.engines.backends.ort import use_shared_thread_pool
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import SkipDecError
from skipdec.engines.host.console import markdown_table
from skipdec.exporter.architecture.architecture import family_config

BENCH_MODEL = "opt-1.3b"
SIX_LAYERS = "constant:max=6"
_STARTUP_REPETITIONS = 5
_IMPORT_CHECK = "import skipdec.runtime, sys; sys.exit('torch' in sys.modules)"

# Model, options of the export, largest RssAnon in bytes.
_EXPORT_PEAKS = (
    ("opt-1.3b", ("--fp16",), 1.5e9),
    ("opt-6.7b", ("--quantize", "int4"), 3.5e9),
)
_FLOOR_FRACTIONS = {"int8": 0.90, "int4": 0.85}
_LARGEST_STITCHING_RATIO = 1.05
_SMALLEST_SKIPPING_FRACTION = 0.95


@dataclass(frozen=True)
class Figure:
    """One number that was aimed for, and what came out."""

    what: str
    target: str
    measured: str
    met: bool


def startup_figures() -> Iterator[Figure]:
    """Time ``skipdec --help`` and ``import skipdec.runtime``, which must not load torch."""
    for what, command in (
        ("`skipdec --help`", skipdec_command("--help")),
        ("`import skipdec.runtime`, without torch", [sys.executable, "-c", _IMPORT_CHECK]),
    ):
        best = min(run_measured(command).seconds for _ in range(_STARTUP_REPETITIONS))
        yield Figure(what, "≤ 0.5 s", f"{best:.2f} s", best <= 0.5)


def export_figures(work: Path) -> Iterator[Figure]:
    """Export dummy checkpoints below ``work`` and watch peak memory and time."""
    for model, options, limit in _EXPORT_PEAKS:
        command = f"export {model} {' '.join(options)} --load-format dummy --no-verify"
        process = run_measured(_export_command(model, options, work / "peak"))
        peak = process.peak_anonymous
        yield Figure(
            f"peak RssAnon of `{command}`",
            f"≤ {limit / 1e9:.1f} GB",
            f"{peak / 1e9:.2f} GB",
            0 < peak <= limit,
        )
    yield from _checkpoint_figures(work)
    report = json.loads(run_measured(_export_command("opt-125m", (), work / "quick")).stdout)
    seconds = sum(report["stage_seconds"].values())
    yield Figure(
        "`export opt-125m --load-format dummy --no-verify`, all stages",
        "≤ 20 s",
        f"{seconds:.1f} s",
        seconds <= 20,
    )


def _checkpoint_figures(work: Path) -> Iterator[Figure]:
    """The first peak again from files on disk; the safetensors once more under a hard limit."""
    model, options, limit = _EXPORT_PEAKS[0]
    config = family_config(model)
    assert config is not None
    file_formats: tuple[FileFormat, ...] = ("safetensors", "bin")
    for file_format in file_formats:
        checkpoint = work / f"{model}-{file_format}"
        if not checkpoint.exists():
            write_dummy_checkpoint(config, checkpoint, file_format)
        command = _export_command(str(checkpoint), options, work / "peak", load_format=file_format)
        peak = run_measured(command).peak_anonymous
        yield Figure(
            f"the same from sharded {file_format} files",
            f"≤ {limit / 1e9:.1f} GB",
            f"{peak / 1e9:.2f} GB",
            0 < peak <= limit,
        )
        if file_format == "safetensors":
            yield _limited_figure(command, int(limit))


def _limited_figure(command: Sequence[str], limit: int) -> Figure:
    """Whether ``command`` ends well when the kernel refuses it more than ``limit`` bytes."""
    try:
        run_measured(["prlimit", f"--data={limit}", *command])
    except SkipDecError:
        met = False
    else:
        met = True
    measured = "finished" if met else "failed"
    return Figure("the same under `prlimit --data`", f"{limit / 1e9:.1f} GB", measured, met)


def export_for_bench(quantize: str, work: Path) -> Path:
    """Export the benchmark's model with dummy weights, unless ``work`` has it already."""
    bundle = work / f"{BENCH_MODEL}-{quantize}"
    if not bundle.exists():
        run_measured(_export_command(BENCH_MODEL, ("--quantize", quantize), bundle))
    return bundle


def stitching_figure(bundle: Path, threads: int) -> Figure:
    """Compare one step of all stitched layers with the same layers in one graph, here."""
    use_shared_thread_pool(threads)
    opened = EngineBundle.open(bundle)
    ratio = StitchingBench(opened).measure().ratio
    precision = opened.manifest.precision.quantize
    return Figure(
        f"{BENCH_MODEL} {precision}: {len(opened.manifest.layers)} stitched engines ÷ one graph",
        f"≤ {_LARGEST_STITCHING_RATIO}",
        f"{ratio:.3f}",
        ratio <= _LARGEST_STITCHING_RATIO,
    )


def bench_bundle(bundle: Path, threads: int, repetitions: int) -> dict[str, Any]:
    """Return the JSON of ``skipdec bench`` with presets and with 6 layers, batch 1 and 8."""
    schedules = [f"--schedule={text}" for text in ("full", "2x", "4x", SIX_LAYERS)]
    command = skipdec_command(
        "bench",
        str(bundle),
        "-b",
        "1,8",
        *schedules,
        f"--threads={threads}",
        f"--repetitions={repetitions}",
        "--json",
    )
    document: dict[str, Any] = json.loads(run_measured(command).stdout)
    return document


def decoding_figures(quantize: str, document: dict[str, Any]) -> Iterator[Figure]:
    """Judge one bundle's ``skipdec bench`` at batch 1: bandwidth at full depth, gain at 6 layers.

    A probe that was beaten proves nothing: its figures are not met.
    """
    measured = {entry["name"]: entry for entry in document["measurements"][:4]}
    fraction, target = measured["full"]["bandwidth_fraction"], _FLOOR_FRACTIONS[quantize]
    yield Figure(
        f"{BENCH_MODEL} {quantize}, batch 1: fraction of the bandwidth floor, head included",
        f"≥ {target:.2f}",
        f"{fraction:.2f} (best steps: {measured['full']['best_bandwidth_fraction']:.2f})",
        document["probe_is_valid"] and fraction >= target,
    )
    six = measured[SIX_LAYERS]
    gained, predicted = six["decode_speedup"], six["predicted_speedup"]
    yield Figure(
        f"{BENCH_MODEL} {quantize}, batch 1: 6 of 24 layers, gain ÷ ratio of bytes",
        f"≥ {_SMALLEST_SKIPPING_FRACTION}",
        f"{gained / predicted:.2f} ({gained:.2f}× of {predicted:.2f}×)",
        gained / predicted >= _SMALLEST_SKIPPING_FRACTION,
    )


def figures_table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table."""
    rows = [
        (figure.what, figure.target, figure.measured, "yes" if figure.met else "no")
        for figure in figures
    ]
    return markdown_table(("figure", "target", "measured", "met"), rows)


def bench_table(document: dict[str, Any]) -> str:
    """Return one bundle's measurements as a Markdown table."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "batch": lambda entry: str(entry["batch_size"]),
        "schedule": lambda entry: f"`{entry['name']}`",
        "layers run": lambda entry: f"{entry['realised_depth']:.2f}",
        "first token ms": lambda entry: f"{entry['time_to_first_token'] * 1e3:.0f}",
        "ms/token p50": lambda entry: f"{entry['step_milliseconds_p50']:.2f}",
        "p95": lambda entry: f"{entry['step_milliseconds_p95']:.2f}",
        "tokens/s": lambda entry: f"{entry['tokens_per_second']:.1f}",
        "whole call s": lambda entry: f"{entry['wall_seconds']:.2f}",
        "speed-up": lambda entry: f"{entry['speedup']:.2f}×",
        "of steps": lambda entry: f"{entry['decode_speedup']:.2f}×",
        "predicted": lambda entry: f"{entry['predicted_speedup']:.2f}×",
        "of bandwidth": lambda entry: f"{entry['bandwidth_fraction']:.2f}",
        "best": lambda entry: f"{entry['best_bandwidth_fraction']:.2f}",
    }
    rows = [[cell(entry) for cell in columns.values()] for entry in document["measurements"]]
    bandwidth = document["bandwidth_bytes_per_second"] / 1e9
    config = document["config"]
    return "\n".join(
        [
            f"Prompt {config['prompt_length']}, {config['num_tokens']} tokens a row, medians of "
            f"{config['repetitions']}; memory reads {bandwidth:.1f} GB/s, best of "
            f"{document['bandwidth_passes']}.\n",
            markdown_table(list(columns), rows),
        ]
    )


def _export_command(
    model: str, options: Sequence[str], output: Path, *, load_format: str = "dummy"
) -> list[str]:
    return skipdec_command(
        "export",
        model,
        *options,
        f"--load-format={load_format}",
        "--no-verify",
        "--force",
        "--json",
        "-o",
        str(output),
    )
