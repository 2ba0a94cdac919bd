"""Cost of starting and of exporting: seconds and peak memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.cpu.bundles import Bundles, export_command
from benchmarks.cpu.dummy_checkpoint import FileFormat, write_dummy_checkpoint
from benchmarks.cpu.figure import Figure, Part
from benchmarks.process import run_measured, skipdec_command
from skipdec.engines.errors import SkipDecError
from skipdec.exporter.architecture.architecture import family_config

_REPETITIONS = 5
_IMPORT_CHECK = "import skipdec.runtime, sys; sys.exit('torch' in sys.modules)"

# Model, export options, maximum RssAnon in bytes.
_EXPORT_PEAKS = (
    ("opt-1.3b", ("--fp16",), 1.5e9),
    ("opt-6.7b", ("--quantize", "int4"), 3.5e9),
)


def startup(bundles: Bundles) -> Part:
    """Time ``skipdec --help`` and ``import skipdec.runtime``, which must not load torch."""
    figures = []
    for what, command in (
        ("`skipdec --help`", skipdec_command("--help")),
        ("`import skipdec.runtime`, without torch", [sys.executable, "-c", _IMPORT_CHECK]),
    ):
        best = min(run_measured(command).seconds for _ in range(_REPETITIONS))
        figures.append(Figure(what, "≤ 0.5 s", f"{best:.2f} s", best <= 0.5))
    return Part(figures)


def export(bundles: Bundles) -> Part:
    """Export dummy checkpoints and measure peak memory and time."""
    return Part(list(_export_figures(bundles.work)))


def _export_figures(work: Path) -> Iterator[Figure]:
    for model, options, limit in _EXPORT_PEAKS:
        what = f"`export {model} {' '.join(options)} --load-format dummy --no-verify`"
        peak = run_measured(export_command(model, options, work / "peak")).peak_anonymous
        yield _peak_figure(f"peak RssAnon of {what}", peak, limit)
    yield from _checkpoint_figures(work)
    report = json.loads(run_measured(export_command("opt-125m", (), work / "quick")).stdout)
    seconds = sum(report["stage_seconds"].values())
    yield Figure(
        "`export opt-125m --load-format dummy --no-verify`, all stages",
        "≤ 20 s",
        f"{seconds:.1f} s",
        seconds <= 20,
    )


def _checkpoint_figures(work: Path) -> Iterator[Figure]:
    """Measure the first peak again from files on disk; the safetensors also under a hard limit."""
    model, options, limit = _EXPORT_PEAKS[0]
    config = family_config(model)
    assert config is not None
    file_formats: tuple[FileFormat, ...] = ("safetensors", "bin")
    for file_format in file_formats:
        checkpoint = work / f"{model}-{file_format}"
        if not checkpoint.exists():
            write_dummy_checkpoint(config, checkpoint, file_format)
        command = export_command(str(checkpoint), options, work / "peak", load_format=file_format)
        peak = run_measured(command).peak_anonymous
        yield _peak_figure(f"the same from sharded {file_format} files", peak, limit)
        if file_format == "safetensors":
            yield _limited_figure(command, int(limit))


def _peak_figure(what: str, peak: int, limit: float) -> Figure:
    return Figure(what, f"≤ {limit / 1e9:.1f} GB", f"{peak / 1e9:.2f} GB", 0 < peak <= limit)


def _limited_figure(command: Sequence[str], limit: int) -> Figure:
    """Check that ``command`` succeeds if the kernel grants it at most ``limit`` bytes."""
    try:
        run_measured(["prlimit", f"--data={limit}", *command])
    except SkipDecError:
        met = False
    else:
        met = True
    measured = "finished" if met else "failed"
    return Figure("the same under `prlimit --data`", f"{limit / 1e9:.1f} GB", measured, met)
