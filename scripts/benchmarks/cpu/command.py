"""Measure skipdec's CPU figures against their targets and draw docs/benchmarks/cpu.md.

    source scripts/setup_environment.sh && python scripts/bench.py cpu --work /tmp/bench

Each processor has a file of figures, docs/benchmarks/cpu/NAME.json; each part is written to it as
soon as it is measured. Without --parts, the missing ones are measured. Weights are random (seeded)
at real sizes: about 25 GB of disk; half an hour on 2 cores, mostly for exports and the parts
startup, export and schedules. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from pages.cpu import FIGURES, PAGE, draw

from benchmarks.cpu import decoding, host, opening, startup
from benchmarks.cpu.bundles import Bundles
from benchmarks.cpu.figure import Part
from benchmarks.record import Record
from skipdec import use_shared_thread_pool
from skipdec.engines.host.processor import available_cores, restart_with_huge_pages
from skipdec.engines.kernels.library import find_library

PARTS: dict[str, Callable[[Bundles], Part]] = {
    "one-row": decoding.one_row,
    "eight-rows": decoding.eight_rows,
    "sixteen-rows": decoding.sixteen_rows,
    "prompt": decoding.prompt,
    "long-context": decoding.long_context,
    "six-layers": decoding.six_layers,
    "halves": decoding.halves,
    "memory": opening.memory,
    "opening": opening.opening,
    "host": host.host_share,
    "neighbour": host.neighbour,
    "stitching": decoding.stitching,
    "schedules": decoding.schedules,
    "startup": startup.startup,
    "export": startup.export,
}


def main() -> None:
    """Measure the requested parts one by one, and draw the page."""
    restart_with_huge_pages()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--work", type=Path, required=True, help="directory for bundles, which are kept"
    )
    parser.add_argument("--figures", type=Path, default=FIGURES, help="directory of JSON files")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="(default: those not measured yet)"
    )
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    use_shared_thread_pool(arguments.threads)
    record = Record.here(arguments.figures)
    measured = record.read()["parts"]
    for name in arguments.parts or [name for name in PARTS if name not in measured]:
        bundles = Bundles(arguments.work, arguments.threads)
        try:
            part = PARTS[name](bundles)
        finally:
            bundles.close()
        record.add(name, {"threads": arguments.threads, **part.document()}, versions())
        draw(arguments.figures, arguments.page)
        for figure in part.figures:
            verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
            print(f"{figure.what}: {figure.measured} {figure.target} {verdict}", flush=True)


def versions() -> dict[str, str]:
    """Return versions of the software, and the kernels' instruction set."""
    library = find_library()
    return {
        "skipdec": version("skipdec"),
        "ONNX Runtime": version("onnxruntime"),
        "kernels": "none" if library is None else library.instruction_set,
    }
