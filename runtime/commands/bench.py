"""``skipdec bench``: the gain of each schedule on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ...engines.errors import counted
from ...engines.host.console import Part, Table, print_report
from ...engines.host.options import AsJson, BundlePath, Quiet, from_options
from ..measuring.config import BenchConfig
from ..measuring.meter import Ratio
from .options import EngineChoice, open_bundle

if TYPE_CHECKING:
    from ..generator import Generator

# Headings, and the cell of a measurement below each.
_COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("batch", lambda entry: str(entry.batch_size)),
    ("schedule", lambda entry: str(entry.name)),
    ("layers", lambda entry: f"{entry.realised_depth:.2f}"),
    ("first ms", lambda entry: f"{entry.time_to_first_token * 1e3:.1f}"),
    ("ms/token", lambda entry: f"{entry.step_milliseconds_p50:.2f}"),
    ("p95", lambda entry: f"{entry.step_milliseconds_p95:.2f}"),
    ("tokens/s", lambda entry: f"{entry.tokens_per_second:.1f}"),
    ("call s", lambda entry: f"{entry.wall_seconds:.3f}"),
    ("speed-up", lambda entry: str(entry.speedup)),
    ("of steps", lambda entry: str(entry.decode_speedup)),
    ("bytes", lambda entry: f"{entry.bytes_ratio:.2f}×"),
    ("bandwidth", lambda entry: f"{entry.bandwidth_fraction:.2f}"),
)
_NATIVE_COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("runtime", lambda entry: str(entry.runtime)),
    ("of python", lambda entry: f"{ratio:.2f}×" if (ratio := entry.of_python) else ""),
)

_DRAFT_COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("batch", lambda entry: str(entry.batch_size)),
    ("schedule", lambda entry: str(entry.schedule)),
    ("draft", lambda entry: str(entry.draft)),
    ("tokens/pass", lambda entry: f"{entry.tokens_per_pass:.2f}"),
    ("accepted", lambda entry: "" if (share := entry.acceptance) is None else f"{share:.2f}"),
    ("drafting", lambda entry: f"{entry.draft_share:.0%}"),
    ("call s", lambda entry: f"{entry.wall_seconds:.3f}"),
    ("gain", lambda entry: str(entry.gain)),
    ("of steps", lambda entry: str(entry.decode_gain)),
)

EXAMPLES = """
Examples:

\b
skipdec bench opt-1.3b
  full depth and the bundle's own schedule

\b
skipdec bench opt-1.3b --schedule 2x --schedule 4x

\b
skipdec bench opt-1.3b -b 1,8 --prompt-len 128 --gen-len 64 --threads 2 \\
    --json

\b
skipdec bench opt-1.3b --schedule 4x --threads 2 --runtime native
  libskipdec, the C++ runtime, beside Python's, each with one pool of threads

\b
skipdec bench opt-1.3b-int8 --draft own --draft ends:3 \\
    --prompts chats.jsonl --temperature 0.7 --runtime native
  drafts beside none on your own texts and chats, in both runtimes
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
    included, or of the steps after them; one that layers can't explain is not shown: other work
    disturbed it. Bytes: what these steps read at full depth ÷ what they read at the schedule.
    Bandwidth: the bytes of executed weights, scales and KV caches that steps read per second, over
    those of the probe pass after them; best: the fastest twentieth of steps over the best pass.

    With --draft: the same texts with and without drafts, in turn, greedy or with --temperature.
    Answers to --prompts may then end early, and drafts learn from those to earlier prompts.
    Drafting: its share of the time of all steps. The gain is that of whole calls.
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
            setting = _setting(generator, threads, config)
            if config.drafts:
                found = {"measurements": measure_drafts(generator, config, progress, native)}
            else:
                found = vars(run_benchmark(generator, config, probe, progress, native.get("off")))
    print_report(setting | found, _parts(setting | found, config), as_json=as_json)


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


def _parts(report: dict[str, Any], config: BenchConfig) -> Iterator[Part]:
    entries, threads = report["measurements"], report["threads"]
    where = report["device"] if threads is None else counted(threads, "thread")
    prompts = config.prompts or f"random prompts of {config.prompt_length}"
    most = "up to " if config.drafts and config.prompts else ""
    turns = sorted({entry.turns for entry in entries})
    sampled = f" at temperature {config.temperature:g}" if config.temperature else ""
    yield (
        f"{report['model']}, {report['kernels']}, {where}, {prompts}, {most}"
        f"{counted(config.num_tokens, 'token')} per row{sampled}, medians of "
        f"{' and '.join(map(str, turns))} turns"
    )
    columns = _DRAFT_COLUMNS if config.drafts else _COLUMNS
    columns += _NATIVE_COLUMNS if config.runtime == "native" else ()
    rows = [[cell(entry) for _, cell in columns] for entry in entries]
    yield Table([heading for heading, _ in columns], rows)
    if config.drafts:
        yield "all texts are equal to those without drafts"
    else:
        for name, text in {entry.name: entry.schedule for entry in entries}.items():
            if name != text:
                yield f"{name}: {text}"
        traffic = "memory reads" if threads is not None else "memory reads and writes"
        bandwidth = report["bandwidth_bytes_per_second"] / 1e9
        yield f"{traffic}: {bandwidth:.1f} GB/s, best of {report['bandwidth_passes']}"
        if not report["probe_is_valid"]:
            yield "a fraction is above 1: the probe was disturbed, ignore that column"
    for entry in entries:
        name = f"{entry.draft} at {entry.schedule}" if config.drafts else entry.name
        for ratio in vars(entry).values():
            if isinstance(ratio, Ratio) and ratio.disturbed:
                yield (
                    f"other work disturbed {name} at batch {entry.batch_size}: "
                    f"{ratio.disturbed}; measure again when the machine is idle"
                )
