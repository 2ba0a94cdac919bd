"""Speed and quality of examples/restaurants, for docs/benchmarks/one-model.json, table and chart.

The model runs in int8 at full depth, 2x and 4x on E2E's development set, batches of 1 and 8,
alternating for several rounds, two minutes per round on one core. Existing rounds are not repeated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.process import run_command, skipdec_command
from benchmarks.record import ROOT
from skipdec.engines.host.processor import processor_name
from skipdec.runtime.schedule.pictures import WIDTH, picture_style, save_picture

FIGURES = ROOT / "docs" / "benchmarks" / "one-model.json"
PICTURE = FIGURES.with_suffix(".svg")
SCHEDULES = ("full", "2x", "4x")
BATCH_SIZES = (1, 8)
NUM_PROMPTS = 200
_ROUNDS = 3


def measure_and_draw(data: Path, work: Path) -> None:
    """Measure the rounds missing in ``work``, write the figures and the chart, print the table."""
    figures = measure(data, work)
    FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    draw(figures, PICTURE)
    print(table(figures))


def measure(data: Path, work: Path) -> dict[str, Any]:
    """Run the rounds missing in ``work`` and return the figures of all rounds."""
    bundle = work / "restaurants-int8"
    if not bundle.exists():
        model = ROOT / "examples" / "restaurants"
        export = ("export", str(model), "--quantize", "int8", "-q", "-o", str(bundle))
        run_command(skipdec_command(*export))
    options = ["--preset", "e2e", "--limit", str(NUM_PROMPTS), "--lowercase", "--equal-lengths"]
    options += ["--threads", "1", *(f"--schedule={schedule}" for schedule in SCHEDULES[1:])]
    reports: dict[int, list[Any]] = {batch_size: [] for batch_size in BATCH_SIZES}
    for number in range(_ROUNDS):
        for batch_size, found in reports.items():
            results = work / f"batch-{batch_size}-round-{number}"
            if not results.exists():
                where = ["--data", str(data), "--batch-size", str(batch_size), "-o", str(results)]
                run_command(skipdec_command("evaluate", str(bundle), *options, *where))
            found.append(json.loads((results / "evaluation.json").read_text()))
    return {
        "model": "examples/restaurants, int8, 12 layers of width 112",
        "data": f"E2E dev.csv, the first {NUM_PROMPTS} prompts, greedy",
        "processor": processor_name(),
        "threads": 1,
        "skipdec": reports[1][0]["skipdec"],
        "rows": [
            _row(batch_size, index, found)
            for batch_size, found in reports.items()
            for index in range(len(SCHEDULES))
        ],
    }


def _row(batch_size: int, index: int, reports: list[Any]) -> dict[str, Any]:
    rows = [report["rows"][index] for report in reports]
    bleu = rows[0]["metrics"]["bleu"]["estimate"]
    return {
        "batch_size": batch_size,
        "schedule": rows[0]["schedule"],
        "layers": round(rows[0]["metrics"]["realised_depth"]["estimate"]["value"], 2),
        "bleu": [round(bleu[key], 1) for key in ("value", "low", "high")],
        "ms_per_token": [
            round(1000 * row["wall_seconds"] / row["generated_tokens"], 3) for row in rows
        ],
        "speedups": [round(row["speedup"]["value"], 2) for row in rows],
    }


def table(figures: Mapping[str, Any]) -> str:
    """Return README.md's table: the calmest round per batch size, ranges of all rounds."""
    lines = [
        "| schedule | layers per token | BLEU [95 %] "
        "| batch 1: ms per token | speed-up | batch 8: ms per token | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for schedule in SCHEDULES:
        one, eight = (
            next(row for row in figures["rows"] if (row["batch_size"], row["schedule"]) == key)
            for key in ((1, schedule), (8, schedule))
        )
        value, low, high = one["bleu"]
        timings = [cell for row in (one, eight) for cell in _timing(row, calmest(figures, row))]
        quality = f"{value} [{low}, {high}]"
        lines.append(
            f"| `{schedule}` | {one['layers']} | {quality} | " + " | ".join(timings) + " |"
        )
    return "\n".join(lines)


def calmest(figures: Mapping[str, Any], row: Mapping[str, Any]) -> int:
    """Return the round of a row's batch size in which full depth was fastest."""
    full = next(other for other in figures["rows"] if other["batch_size"] == row["batch_size"])
    times: list[float] = full["ms_per_token"]
    return times.index(min(times))


def _timing(row: Mapping[str, Any], calm: int) -> tuple[str, str]:
    milliseconds, speedups = f"{row['ms_per_token'][calm]:.2f}", row["speedups"]
    if row["schedule"] == "full":
        return milliseconds, "1×"
    return milliseconds, f"**{speedups[calm]:.2f}×** ({min(speedups):.2f}–{max(speedups):.2f})"


def digest(figures: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the figures, which the chart carries."""
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw BLEU over measured speed-up as an SVG, one line per batch size."""
    import matplotlib
    from matplotlib.figure import Figure

    with picture_style(), matplotlib.rc_context({"svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH, 3), layout="constrained")
        axes = figure.subplots()
        for batch_size, colour in zip(BATCH_SIZES, ("#3b6ea5", "#f2a65a"), strict=True):
            rows = [row for row in figures["rows"] if row["batch_size"] == batch_size]
            speedups = [row["speedups"][calmest(figures, row)] for row in rows]
            bleu = [row["bleu"][0] for row in rows]
            axes.errorbar(
                speedups,
                bleu,
                yerr=[
                    [row["bleu"][0] - row["bleu"][1] for row in rows],
                    [row["bleu"][2] - row["bleu"][0] for row in rows],
                ],
                marker="o",
                capsize=3,
                color=colour,
                label=f"batch {batch_size}",
            )
            for row, x, y in zip(rows, speedups, bleu, strict=True):
                note = f"{row['schedule']}, {row['layers']:.1f} of 12 layers"
                if batch_size == BATCH_SIZES[0]:
                    axes.annotate(note, (x, y), (0, 9), textcoords="offset points", ha="center")
        axes.set_ylim(0, 90)
        axes.margins(x=0.15)
        axes.set_xlabel("end-to-end speed-up over full depth, equal numbers of tokens")
        axes.set_ylabel("BLEU on 200 E2E prompts")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left")
        save_picture(figure, path, description=digest(figures))
