"""Generate docs/benchmarks/peers.md from all processors' figures, docs/benchmarks/peers/*.json.

PYTHONPATH=scripts python -m pages.peers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.cells import PROMPT
from benchmarks.peers.verdict import Comparison, with_spread
from benchmarks.record import ROOT, records

from skipdec.engines.host.console import markdown_table

FIGURES = ROOT / "docs" / "benchmarks" / "peers"
PAGE = FIGURES.with_suffix(".md")
_PEERS_OF_OPT = ("CTranslate2", "OpenVINO")
_PEERS_OF_OTHERS = ("llama.cpp", "OpenVINO", "ONNX Runtime GenAI")
_INTRODUCTION = f"""# Comparison with other engines

`scripts/pages/peers.py` generates this page from `docs/benchmarks/peers/*.json`, one file for
each processor, which `scripts/bench.py peers` measures. All engines run at full depth with random
weights at real sizes, greedily; decoding starts from prompts of {PROMPT} random tokens. Each
engine runs in a process of its own, one at a time, in turn, and is restarted several times: a
time is the median of its starts, with the fastest and the slowest start in parentheses. The ratio
is the fastest peer's time ÷ skipdec's; parentheses give their fastest start ÷ our slowest and
their slowest ÷ our fastest. A goal is "reached" or "missed" only if both ends of that range
agree. The table shows the fastest of the configurations that were tried for each peer.
"""


def main() -> None:
    """Draw the page."""
    draw(FIGURES, PAGE)


def draw(figures: Path, page: Path) -> None:
    """Write ``page`` from the files of ``figures``."""
    page.write_text(peers_page(list(records(figures))), encoding="utf-8")


def peers_page(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page; ``machines`` are the documents of `records`."""
    return _INTRODUCTION + "".join(
        f"{line}\n" for machine in machines for line in _section(machine)
    )


def _section(machine: Mapping[str, Any]) -> Iterator[str]:
    parts = {name: part for name, part in machine["parts"].items() if "cells" in part}
    yield f"\n## {machine['processor']}\n"
    yield f"Instruction sets: {', '.join(machine['instruction_sets'])}.\n"
    for peers, compared in _by_peers(parts).items():
        headings = ("model", "measured", "skipdec", *peers, "ratio to the fastest", "verdict")
        yield markdown_table(
            headings,
            [
                _row(name, what, cell, peers)
                for name, part in compared.items()
                for what, cell in part["cells"].items()
            ],
        )
        yield ""
    for name, part in parts.items():
        versions = ", ".join(f"{what} {version}" for what, version in part["versions"].items())
        run = f"{part['date']}, commit {part['commit']}, {part['threads']} threads, {versions}"
        ways = "; ".join(
            f"{peer}: {_ways(cells)}" for peer, cells in part["configurations"].items()
        )
        yield f"- {name}: {run}. {ways}."
    searches = {name: part for name, part in machine["parts"].items() if "tried" in part}
    for name, part in searches.items():
        yield f"\n### {name}\n\nOne start each, milliseconds.\n"
        yield _search_table(part["tried"])


def _by_peers(parts: Mapping[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the parts by the engines that they were measured beside."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, part in parts.items():
        engines = {engine for cell in part["cells"].values() for engine in cell["times"]}
        peers = _PEERS_OF_OTHERS if "llama.cpp" in engines else _PEERS_OF_OPT
        found.setdefault(peers, {})[name] = part
    return found


def _ways(cells: Mapping[str, str]) -> str:
    names = dict.fromkeys(cells.values())
    return " and ".join(names)


def _row(model: str, what: str, cell: Mapping[str, Any], engines: Sequence[str]) -> list[str]:
    times: Mapping[str, Sequence[float]] = cell["times"]
    peers = {engine: times[engine] for engine in engines if engine in times}
    theirs = min(peers.values(), key=median)
    comparison = Comparison(times["skipdec"], theirs, cell["goal"])
    return [
        model,
        what,
        with_spread(times["skipdec"]),
        *(with_spread(times[peer]) if peer in times else "–" for peer in engines),
        f"{comparison.ratio:.2f} ({comparison.low:.2f}–{comparison.high:.2f})",
        comparison.verdict,
    ]


def _search_table(tried: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    cells = list(next(iter(next(iter(tried.values())).values())))
    rows = [
        (peer, name, *(f"{times[cell]:.1f}" for cell in cells))
        for peer, configurations in tried.items()
        for name, times in configurations.items()
    ]
    return markdown_table(("engine", "run as", *cells), rows)


if __name__ == "__main__":
    main()
