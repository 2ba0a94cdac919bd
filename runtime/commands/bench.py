"""``skipdec bench``: what each schedule gains on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import typer

from ...engines.host.console import print_json, print_table, result_console
from ...engines.host.options import AsJson, BundlePath, Quiet, from_options
from ..measuring.config import BenchConfig
from .options import EngineChoice, open_bundle

if TYPE_CHECKING:
    from ..generator import Generator
    from ..measuring.bench import BenchReport

_HEADINGS = (
    "batch",
    "schedule",
    "layers\nrun",
    "first\nms",
    "token\np50 ms",
    "token\np95 ms",
    "tokens\na second",
    "whole\ncall s",
    "speed-up",
    "of steps\nalone",
    "fewer\nbytes",
    "of band-\nwidth",
    "best of\nband-\nwidth",
)
_NATIVE_HEADINGS = ("runtime", "steps of\npython's")

_EXAMPLES = """
[bold]Examples[/bold]

skipdec bench opt-1.3b
  full depth and the bundle's own schedule

skipdec bench opt-1.3b --schedule 2x --schedule 4x

skipdec bench opt-1.3b -b 1,8 --prompt-len 128 --gen-len 64 --threads 2 --json

skipdec bench opt-1.3b --schedule 4x --threads 2 --runtime native
  libskipdec, the C++ runtime, beside Python's, which shares one pool of as many threads
"""


def register(app: typer.Typer) -> None:
    """Add ``bench`` to ``app``."""
    app.command(
        "bench",
        epilog=_EXAMPLES,
    )(bench)


@from_options
def bench(
    bundle: BundlePath,
    config: BenchConfig,
    engines: EngineChoice,
    *,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure latency, throughput and the gain over full depth, all in one run.

    Prompts are random tokens; every row generates exactly --gen-len tokens, greedily. Speed-up: of
    whole calls, prompts included, over full depth. Fewer bytes: what the steps after the prompt
    read at full depth over what they read at the schedule. Of bandwidth:
    the executed weights, scales and KV caches that the steps read, in bytes a second, over those
    of the probe pass after them, median of the repetitions; best: the fastest twentieth of all
    steps over the best pass.
    """
    from ...engines.host.progress import ConsoleProgress
    from ..libskipdec.calls import NativeCalls
    from ..measuring.bandwidth import open_probe
    from ..measuring.bench import run_benchmark

    threads, most_rows = engines.threads, max(config.batch_sizes)
    opening = engines.updated(max_batch_size=most_rows)
    with ConsoleProgress(quiet=quiet) as progress, ExitStack() as opened:
        progress.stage("loading")
        native = None
        if config.runtime == "native":
            native = opened.enter_context(
                NativeCalls.open(bundle, threads=threads, max_batch_size=most_rows)
            )
        with (
            open_bundle(bundle, opening) as generator,
            open_probe(generator.device, threads) as probe,
        ):
            report = run_benchmark(generator, config, probe, progress, native)
            document = _document(generator, threads, config, report)
    if as_json:
        print_json(document)
    else:
        _print_report(document)


def _document(
    generator: Generator, threads: int | None, config: BenchConfig, report: BenchReport
) -> dict[str, Any]:
    from dataclasses import asdict

    from ...engines.host.installation import own_version
    from ...engines.host.processor import available_cores, processor_name

    on_device = generator.device is not None
    return {
        "model": generator.model.name,
        "skipdec": own_version(),
        "target": generator.bundle.manifest.target,
        "kernels": generator.kernels,
        "device": generator.device.name if generator.device is not None else "cpu",
        "processor": processor_name(),
        "threads": None if on_device else threads or available_cores(),
        "config": config.model_dump(mode="json"),
        "bandwidth_bytes_per_second": report.bandwidth,
        "bandwidth_passes": report.bandwidth_passes,
        "probe_is_valid": report.probe_is_valid,
        "measurements": [asdict(entry) for entry in report.measurements],
    }


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def _print_report(document: dict[str, Any]) -> None:
    config = document["config"]
    console = result_console()
    threads = document["threads"]
    where = document["device"] if threads is None else f"{threads} threads"
    console.print(
        f"{document['model']}, {document['kernels']}, {where}, prompt {config['prompt_length']}, "
        f"{config['num_tokens']} tokens a row, median of {config['repetitions']}"
    )
    has_native = config["runtime"] == "native"
    rows = [
        (
            str(entry["batch_size"]),
            entry["name"],
            f"{entry['realised_depth']:.2f}",
            f"{entry['time_to_first_token'] * 1e3:.1f}",
            f"{entry['step_milliseconds_p50']:.2f}",
            f"{entry['step_milliseconds_p95']:.2f}",
            f"{entry['tokens_per_second']:.1f}",
            f"{entry['wall_seconds']:.3f}",
            f"{entry['speedup']:.2f}×",
            f"{entry['decode_speedup']:.2f}×",
            f"{entry['bytes_ratio']:.2f}×",
            f"{entry['bandwidth_fraction']:.2f}",
            f"{entry['best_bandwidth_fraction']:.2f}",
            *((entry["runtime"], _ratio(entry["of_python"])) if has_native else ()),
        )
        for entry in document["measurements"]
    ]
    headings = (*_HEADINGS, *_NATIVE_HEADINGS) if has_native else _HEADINGS
    print_table(console, headings, rows, texts=(1,))
    for name, text in {
        entry["name"]: entry["schedule"] for entry in document["measurements"]
    }.items():
        if name != text:
            console.print(f"{name}: {text}")
    bandwidth = document["bandwidth_bytes_per_second"] / 1e9
    what = "memory reads" if threads is not None else "memory reads and writes"
    console.print(f"{what}: {bandwidth:.1f} GB/s, best of {document['bandwidth_passes']}")
    if not document["probe_is_valid"]:
        console.print("a fraction is above 1: the probe was disturbed, ignore that column")
    disturbed: dict[str, list[str]] = {}
    for entry in document["measurements"]:
        if reason := entry["disturbed"]:
            disturbed.setdefault(reason, []).append(
                f"{entry['name']} at batch {entry['batch_size']}"
            )
    for reason, names in disturbed.items():
        console.print(
            f"the machine was disturbed, measure again when it is calm; {', '.join(names)}: "
            f"{reason}"
        )
