"""Compare skipdec at full depth with other engines on the same checkpoint.

    python scripts/bench.py peers
    python scripts/bench.py peers --cells llama-3.2-1b:int8 qwen2.5-0.5b:int4

OPT runs beside CTranslate2 and OpenVINO; LLaMA and Qwen2 beside OpenVINO, llama.cpp and, in int4,
ONNX Runtime GenAI.
All engines have the same threads and prompts. One engine's process (worker.py) runs at a time, and
each is started three times, in an order that rotates. A cell's time is the median over its starts,
and a goal is reached only if the spread of the starts allows no other verdict (verdict.py). Steps
are also timed while an endless loop keeps one core busy. First, each peer is tried with all of
configurations.py, once per processor and model (--search repeats it); the fastest per cell is
compared. Figures go to docs/benchmarks/peers/NAME.json, one file per processor, and are printed.
The peers get their own environment, .venv-peers, from constraints.txt. Weights are random (seeded)
at real sizes and take about 15 GB of disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.cells import CELLS, Cell, WorkerError, started
from benchmarks.peers.configurations import CONFIGURATIONS
from benchmarks.peers.environment import MODELS, Environment
from benchmarks.peers.verdict import rows
from benchmarks.record import ROOT, Record
from skipdec.engines.host.console import markdown_table

FIGURES = ROOT / "docs" / "benchmarks" / "peers"
_DEFAULT_CELLS = ("opt-125m:int8", "opt-1.3b:int8", "opt-1.3b:int4")
_Best = Mapping[str, Mapping[str, str]]  # peer → quiet cell → its fastest configuration


@dataclass(frozen=True)
class Run:
    """One model with one kind of weights, converted for all engines."""

    environment: Environment
    directories: Mapping[str, Path]  # by engine
    threads: int

    def search(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return milliseconds of one try by peer, configuration and cell, without failed starts."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        quiet = [cell for cell in CELLS if not cell.quiet]
        for peer in self.directories.keys() - {"skipdec"}:
            for name in CONFIGURATIONS[peer]:
                try:
                    found.setdefault(peer, {})[name] = self._times(peer, name, quiet)
                except WorkerError as error:
                    print(f"{peer}, {name}: not run here ({error})", file=sys.stderr)
        return found

    def measure(self, best: _Best, starts: int) -> dict[str, object]:
        """Return times by cell and engine, one per start; another engine begins each time."""
        times: dict[str, dict[str, list[float]]] = {cell.name: {} for cell in CELLS}
        engines = ["skipdec", *best]
        for _ in range(starts):
            for engine in engines:
                for cell, milliseconds in self._start(engine, best.get(engine)):
                    times[cell].setdefault(engine, []).append(milliseconds)
            engines.append(engines.pop(0))
        found = {cell.name: {"goal": cell.goal, "times": times[cell.name]} for cell in CELLS}
        return {"cells": found, "configurations": best}

    def _start(self, engine: str, best: Mapping[str, str] | None) -> Iterator[tuple[str, float]]:
        """Yield an engine's time by cell, from one process per configuration."""
        chosen = {cell: best[cell.quiet or cell.name] if best else "" for cell in CELLS}
        for name in dict.fromkeys(chosen.values()):
            own = [cell for cell in CELLS if chosen[cell] == name]
            yield from self._times(engine, name, own).items()

    def _times(self, engine: str, name: str, cells: Sequence[Cell]) -> dict[str, float]:
        python = Path(sys.executable) if engine == "skipdec" else self.environment.python
        configuration = CONFIGURATIONS[engine][name]
        directory = self.directories[engine]
        with started(python, configuration, directory, self.threads) as worker:
            return {cell.name: cell.milliseconds(worker) for cell in cells}


def main() -> None:
    """Search if necessary, measure the requested models, and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", nargs="+", default=_DEFAULT_CELLS, metavar="MODEL:WEIGHTS")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--search", action="store_true", help="try the peers' options again")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-peers",
                        help="of the peers; keeps checkpoints and bundles, too")  # fmt: skip
    arguments = parser.parse_args()

    environment = Environment(arguments.environment)
    environment.prepare()
    record = Record.here(FIGURES)
    versions = {
        "skipdec": version("skipdec"),
        "ONNX Runtime": version("onnxruntime"),
        **environment.versions(),
    }
    for text in arguments.cells:
        model, _, weights = text.partition(":")
        if model not in MODELS or weights not in ("int8", "int4"):
            parser.error(f"--cells is {text}; allowed: {', '.join(MODELS)}, then :int8 or :int4")
        directories = environment.convert(model, weights)
        run = Run(environment, directories, arguments.threads)
        options = {"threads": arguments.threads}
        search = f"{model} {weights}, search"
        if arguments.search or search not in record.read()["parts"]:
            record.add(search, {**options, "tried": run.search()}, versions)
        best = fastest(record.read()["parts"][search]["tried"])
        found = run.measure(best, arguments.starts)
        record.add(f"{model} {weights}", {**options, **found}, versions)
        table = rows(record.read()["parts"][f"{model} {weights}"]["cells"])
        print(f"{text}\n{markdown_table(('measured', 'times', 'ratio', 'verdict'), table)}")


def fastest(tried: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, str]]:
    """Return each peer's fastest configuration per cell."""
    return {
        peer: {
            cell: min(configurations, key=lambda name: configurations[name][cell])
            for cell in next(iter(configurations.values()))
        }
        for peer, configurations in tried.items()
    }
