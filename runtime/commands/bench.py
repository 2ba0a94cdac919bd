"""``skipdec bench``: the gain of each schedule on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...engines.host.console import print_json, print_table, result_console
from ...engines.host.options import AsJson, BundlePath, Quiet, from_options
from ..measuring.config import BenchConfig
from ..measuring.meter import Ratio
from .options import EngineChoice, open_bundle

if TYPE_CHECKING:
    from rich.console import Console

    from ..generator import Generator
    from ..measuring.bench import BenchReport

# Headings, and the cell of a measurement below each.
_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("batch", lambda entry: str(entry["batch_size"])),
    ("schedule", lambda entry: str(entry["name"])),
    ("layers", lambda entry: f"{entry['realised_depth']:.2f}"),
    ("first ms", lambda entry: f"{entry['time_to_first_token'] * 1e3:.1f}"),
    ("ms/token", lambda entry: f"{entry['step_milliseconds_p50']:.2f}"),
    ("p95", lambda entry: f"{entry['step_milliseconds_p95']:.2f}"),
    ("tokens/s", lambda entry: f"{entry['tokens_per_second']:.1f}"),
    ("call s", lambda entry: f"{entry['wall_seconds']:.3f}"),
    ("speed-up", lambda entry: _ratio(entry, "speedup")),
    ("of steps", lambda entry: _ratio(entry, "decode_speedup")),
    ("bytes", lambda entry: f"{entry['bytes_ratio']:.2f}×"),
    ("bandwidth", lambda entry: f"{entry['bandwidth_fraction']:.2f}"),
    ("best", lambda entry: f"{entry['best_bandwidth_fraction']:.2f}"),
)
_NATIVE_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("runtime", lambda entry: str(entry["runtime"])),
    ("of python", lambda entry: f"{ratio:.2f}×" if (ratio := entry["of_python"]) else ""),
)

_DRAFT_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("batch", lambda entry: str(entry["batch_size"])),
    ("schedule", lambda entry: str(entry["schedule"])),
    ("draft", lambda entry: str(entry["draft"])),
    ("tokens/pass", lambda entry: f"{entry['tokens_per_pass']:.2f}"),
    ("accepted", lambda entry: "" if (share := entry["acceptance"]) is None else f"{share:.2f}"),
    ("drafting", lambda entry: f"{entry['draft_share']:.0%}"),
    ("call s", lambda entry: f"{entry['wall_seconds']:.3f}"),
    ("gain", lambda entry: _ratio(entry, "gain")),
    ("of steps", lambda entry: _ratio(entry, "decode_gain")),
)

EXAMPLES = """
[bold]Examples[/bold]

skipdec bench opt-1.3b
  full depth and the bundle's own schedule

skipdec bench opt-1.3b --schedule 2x --schedule 4x

skipdec bench opt-1.3b -b 1,8 --prompt-len 128 --gen-len 64 --threads 2 --json

skipdec bench opt-1.3b --schedule 4x --threads 2 --runtime native
  libskipdec, the C++ runtime, beside Python's, each with one pool of as many threads

skipdec bench opt-1.3b-int8 --draft own --draft ends:3 --prompts chats.jsonl --runtime native
  drafts beside none on your own texts and chats, in both runtimes

skipdec bench opt-1.3b --draft own --draft ends:3 --accept 0.8
  drafts beside none at full depth, right with probability 0.8, since random weights accept none
"""


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

    Schedules take turns with full depth until the 95 % intervals of their speed-ups, in brackets,
    are narrow, or --seconds have passed. Prompts are random tokens, or those of --prompts; every
    row generates exactly --gen-len tokens, greedily. The speed-up is that of whole calls, prompts
    included, or of the steps behind them; one that layers can't give is not shown: other work
    disturbed it. Bytes: what these steps read at full depth over what they read at the schedule.
    Bandwidth: the bytes of executed weights, scales and KV caches that steps read per second, over
    those of the probe pass after them; best: the fastest twentieth of steps over the best pass.

    With --draft: the same texts with and without drafts, in turn. Texts of --prompts then end where
    they end, and drafts know those of earlier prompts. Drafting: its share of the time of all
    steps. The gain is that of whole calls.
    """
    from ...engines.host.progress import ConsoleProgress
    from ..libskipdec.calls import NativeCalls
    from ..measuring.bandwidth import open_probe
    from ..measuring.bench import run_benchmark
    from ..measuring.drafts import measure_drafts

    threads, max_rows = engines.threads, max(config.batch_sizes)
    opening = engines.updated(max_batch_size=max_rows)
    with ConsoleProgress(quiet=quiet) as progress, ExitStack() as opened:
        progress.stage("loading")
        native: dict[str, NativeCalls] = {}  # by draft
        if config.runtime == "native":
            for draft in ("off", *config.drafts) if config.drafts else (None,):
                calls = NativeCalls.open(
                    bundle, threads=threads, max_batch_size=max_rows, draft=draft
                )
                native[draft or "off"] = opened.enter_context(calls)
        with (
            open_bundle(bundle, opening) as generator,
            open_probe(generator.device, threads) as probe,
        ):
            document = _setting(generator, threads, config)
            if config.drafts:
                measured = measure_drafts(generator, config, progress, native)
                document["measurements"] = [
                    asdict(entry)
                    | entry.gain.document("gain")
                    | entry.decode_gain.document("decode_gain")
                    for entry in measured
                ]
            else:
                document |= _report(
                    run_benchmark(generator, config, probe, progress, native.get("off"))
                )
    if as_json:
        print_json(document)
    elif config.drafts:
        _print_drafts(document)
    else:
        _print_report(document)


def _setting(generator: Generator, threads: int | None, config: BenchConfig) -> dict[str, Any]:
    """Describe the model, the machine and the options."""
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
    }


def _report(report: BenchReport) -> dict[str, Any]:
    return {
        "bandwidth_bytes_per_second": report.bandwidth,
        "bandwidth_passes": report.bandwidth_passes,
        "probe_is_valid": report.probe_is_valid,
        "measurements": [
            asdict(entry)
            | entry.speedup.document("speedup")
            | entry.decode_speedup.document("decode_speedup")
            for entry in report.measurements
        ],
    }


def _print_setting(console: Console, document: dict[str, Any], most: str = "") -> None:
    config, threads = document["config"], document["threads"]
    where = document["device"] if threads is None else f"{threads} threads"
    prompts = config["prompts"] or f"random prompts of {config['prompt_length']}"
    turns = sorted({entry["turns"] for entry in document["measurements"]})
    console.print(
        f"{document['model']}, {document['kernels']}, {where}, {prompts}, {most}"
        f"{config['num_tokens']} tokens per row, medians of {' and '.join(map(str, turns))} turns"
    )


def _print_drafts(document: dict[str, Any]) -> None:
    console = result_console()
    config = document["config"]
    _print_setting(console, document, "up to " if config["prompts"] else "")
    columns = (*_DRAFT_COLUMNS, *(_NATIVE_COLUMNS if config["runtime"] == "native" else ()))
    rows = [[cell(entry) for _, cell in columns] for entry in document["measurements"]]
    print_table(console, [heading for heading, _ in columns], rows, texts=(1, 2))
    forced = config["accept"]
    if forced is not None:
        console.print(f"drafts were made right with probability {forced:g}, whatever they proposed")
    console.print("all texts are equal to those without drafts")
    _print_disturbed(console, document["measurements"])


def _print_report(document: dict[str, Any]) -> None:
    config, entries = document["config"], document["measurements"]
    console = result_console()
    threads = document["threads"]
    _print_setting(console, document)
    columns = (*_COLUMNS, *(_NATIVE_COLUMNS if config["runtime"] == "native" else ()))
    rows = [[cell(entry) for _, cell in columns] for entry in entries]
    print_table(console, [heading for heading, _ in columns], rows, texts=(1,))
    for name, text in {entry["name"]: entry["schedule"] for entry in entries}.items():
        if name != text:
            console.print(f"{name}: {text}")
    bandwidth = document["bandwidth_bytes_per_second"] / 1e9
    traffic = "memory reads" if threads is not None else "memory reads and writes"
    console.print(f"{traffic}: {bandwidth:.1f} GB/s, best of {document['bandwidth_passes']}")
    if not document["probe_is_valid"]:
        console.print("a fraction is above 1: the probe was disturbed, ignore that column")
    _print_disturbed(console, entries)


def _ratio(entry: dict[str, Any], name: str) -> str:
    """Return the cell of a `Ratio` in JSON."""
    value, bounds = entry[name], entry[f"{name}_interval"]
    return str(Ratio(value, *bounds)) if bounds else "disturbed"


def _print_disturbed(console: Console, entries: list[dict[str, Any]]) -> None:
    fields = [f"{name}_disturbed" for name in ("speedup", "decode_speedup", "gain", "decode_gain")]
    for entry in entries:
        name = entry.get("name") or f"{entry['draft']} at {entry['schedule']}"
        for reason in filter(None, map(entry.get, fields)):
            console.print(
                f"other work disturbed {name} at batch {entry['batch_size']}: {reason}; measure "
                "again when the machine is idle"
            )
