"""Time to open a bundle, and memory of a process that generates."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.cpu.bundles import Bundles
from benchmarks.cpu.figure import Figure, Part
from benchmarks.cpu.paired import summary
from benchmarks.process import run_measured

MODEL = "opt-1.3b"
_OPENED = Path(__file__).parent / "opened.py"
_PROCESSES = 5
_LIMIT_SECONDS = 0.5


def opening(bundles: Bundles) -> Part:
    """Time ``Generator.open`` in a fresh process, with the weights in the page cache."""
    figures, timings = [], {}
    for verify in ("graphs", "full"):
        opened = [_opened(bundles, "int8", verify) for _ in range(_PROCESSES + 1)][1:]
        seconds = tuple(process["open_seconds"] for process in opened)
        timings[f"opening, --verify {verify}"] = summary(seconds)
        middle, best = sorted(seconds)[len(seconds) // 2], min(seconds)
        aimed = verify == "graphs"
        figures.append(
            Figure(
                f"opening int8, 24 layers, --verify {verify}",
                f"≤ {_LIMIT_SECONDS} s" if aimed else "",
                f"{middle:.2f} s (fastest {best:.2f})",
                middle <= _LIMIT_SECONDS if aimed else None,
            )
        )
    return Part(figures, timings)


def memory(bundles: Bundles) -> Part:
    """Measure resident memory, mapped weights included, after generating 8 tokens."""
    resident = {
        kind: _opened(bundles, kind, "graphs")["resident"]
        for kind in ("float32", "float16", "bfloat16", "int8", "int4")
    }
    whole = resident["float32"]
    figures = [
        Figure(
            f"resident memory, {kind} ÷ float32",
            "≤ 0.55" if kind == "float16" else "",
            f"{nbytes / whole:.2f} ({nbytes / 1e9:.2f} of {whole / 1e9:.2f} GB)",
            nbytes <= 0.55 * whole if kind == "float16" else None,
        )
        for kind, nbytes in resident.items()
        if kind != "float32"
    ]
    return Part(figures)


def _opened(bundles: Bundles, kind: str, verify: str) -> dict[str, float]:
    bundle = str(bundles.path(MODEL, kind))
    command = [sys.executable, str(_OPENED), bundle, str(bundles.threads), verify]
    found: dict[str, float] = json.loads(run_measured(command).stdout)
    return found
