"""Write docs/benchmarks/cpu.md from the figures of all processors, docs/benchmarks/cpu/*.json.

    PYTHONPATH=scripts python -m pages.cpu

A figure has a column for each processor, so that measuring one machine keeps the others' figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, records

from skipdec.engines.host.console import markdown_table

FIGURES = ROOT / "docs" / "benchmarks" / "cpu"
PAGE = FIGURES.with_suffix(".md")
_INTRODUCTION = """# Figures on a CPU

`scripts/pages/cpu.py` generates this page from `docs/benchmarks/cpu/*.json`, one file for each
processor, which `scripts/bench.py cpu` measures. Weights are random at real sizes, of opt-1.3b
unless stated otherwise; a step attends to 160 positions unless a row says otherwise. Variants
that are compared run in turn, step by step, in one process with one thread pool. A ratio is the
median of the rounds' ratios, times in parentheses are medians (p50), and "fastest" is the ratio
of the fastest steps. The byte floor is the time in which memory delivers the bytes that a step
reads, at the bandwidth measured together with that step. [Kernels](../concepts/kernels.md#figures)
explains the **missed** goals.
"""


def main() -> None:
    """Draw the page."""
    draw(FIGURES, PAGE)


def draw(figures: Path, page: Path) -> None:
    """Write ``page`` from the files of ``figures``."""
    page.write_text(cpu_page(list(records(figures))), encoding="utf-8")


def cpu_page(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page; ``machines`` are the documents of `records`."""
    sections = [_INTRODUCTION, _figures_table(machines)]
    for machine in machines:
        sections += [f"\n## {machine['processor']}\n", *_sections(machine)]
    return "\n".join(sections) + "\n"


def _figures_table(machines: Sequence[Mapping[str, Any]]) -> str:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for machine in machines:
        for part in machine["parts"].values():
            for figure in part["figures"]:
                row = found.setdefault((figure["what"], figure["target"]), {})
                row[machine["processor"]] = _cell(figure)
    names = [machine["processor"] for machine in machines]
    rows = [
        (what, target, *(row.get(name, "not measured") for name in names))
        for (what, target), row in found.items()
    ]
    return markdown_table(("figure", "goal", *names), rows)


def _cell(figure: Mapping[str, Any]) -> str:
    mark = {True: "", False: "**missed** ", None: ""}[figure["met"]]
    return f"{mark}{figure['measured']}"


def _sections(machine: Mapping[str, Any]) -> Iterator[str]:
    parts: Mapping[str, Mapping[str, Any]] = machine["parts"]
    yield f"Instruction sets: {', '.join(machine['instruction_sets'])}.\n"
    runs: dict[str, list[str]] = {}
    for name, part in parts.items():
        versions = ", ".join(f"{what} {version}" for what, version in part["versions"].items())
        run = f"{part['date']}, commit {part['commit']}, {part['threads']} threads, {versions}"
        runs.setdefault(run, []).append(name)
    yield from (f"- {run}: {', '.join(names)}" for run, names in runs.items())
    timed = [
        (name, what, *(f"{timing[key]:.2f}" for key in ("p50", "minimum", "p95")), timing["count"])
        for name, part in parts.items()
        for what, timing in part.get("timings", {}).items()
    ]
    if timed:
        rows = [[str(cell) for cell in row] for row in timed]
        yield "\n" + markdown_table(("part", "variant", "p50 ms", "fastest", "p95", "steps"), rows)
    for part in parts.values():
        for name, document in part.get("bench", {}).items():
            yield f"\n### {name}, `skipdec bench`\n"
            yield bench_table(document)


def bench_table(document: Mapping[str, Any]) -> str:
    """Return one bundle's measurements, the JSON of ``skipdec bench``, as a Markdown table."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "batch": lambda entry: str(entry["batch_size"]),
        "schedule": lambda entry: f"`{entry['name']}`",
        "layers run": lambda entry: f"{entry['realised_depth']:.2f}",
        "first token ms": lambda entry: f"{entry['time_to_first_token'] * 1e3:.0f}",
        "ms/token p50": lambda entry: f"{entry['step_milliseconds_p50']:.2f}",
        "p95": lambda entry: f"{entry['step_milliseconds_p95']:.2f}",
        "tokens/s": lambda entry: f"{entry['tokens_per_second']:.1f}",
        "whole call s": lambda entry: f"{entry['wall_seconds']:.2f}",
        "speed-up": lambda entry: _factor(entry["speedup"]),
        "speed-up of steps": lambda entry: _factor(entry["decode_speedup"]),
        "fewer bytes": lambda entry: f"{entry['bytes_ratio']:.2f}×",
        "fraction of bandwidth": lambda entry: f"{entry['bandwidth_fraction']:.2f}",
        "best": lambda entry: f"{entry['best_bandwidth_fraction']:.2f}",
    }
    rows = [[cell(entry) for cell in columns.values()] for entry in document["measurements"]]
    bandwidth = document["bandwidth_bytes_per_second"] / 1e9
    config = document["config"]
    return "\n".join(
        [
            f"Prompt {config['prompt_length']}, {config['num_tokens']} tokens per row, medians of "
            f"{document['measurements'][0]['turns']} turns; memory reads {bandwidth:.1f} GB/s, "
            f"best of {document['bandwidth_passes']} passes.\n",
            markdown_table(list(columns), rows),
        ]
    )


def _factor(ratio: float | None) -> str:
    """Return a speed-up of ``skipdec bench``, which is None where other work disturbed it."""
    return "disturbed" if ratio is None else f"{ratio:.2f}×"


if __name__ == "__main__":
    main()
