"""Compare skipdec at full depth with other engines on the same checkpoint.

    python scripts/bench.py peers
    python scripts/bench.py peers --cells llama-3.2-1b:int8 qwen2.5-0.5b:int4

OPT runs beside CTranslate2 and OpenVINO; LLaMA and Qwen2 beside OpenVINO, llama.cpp and, in int4,
ONNX Runtime GenAI.
Threads and prompts are the same, too. Each engine runs in its own process (worker.py), one at a
time, in turn, and is started three times: a cell's time is the median over its starts, and a goal
is reached only if the spread of the starts allows no other verdict (verdict.py). First each peer is
tried with all of configurations.py, once per processor and model (--search repeats it); the fastest
per cell is compared. Figures go to docs/benchmarks/peers/NAME.json, one file per processor, and are
printed. The peers get their own environment, .venv-peers, from constraints.txt. Weights are random
(seeded) at real sizes and take about 15 GB of disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.machine import Machine
from benchmarks.neighbour import Neighbour
from benchmarks.peers.cells import Cell, Worker, WorkerError, busy_ratio, cells, started
from benchmarks.peers.configurations import CONFIGURATIONS
from benchmarks.peers.environment import MODELS, Environment
from benchmarks.peers.verdict import rows
from benchmarks.record import ROOT, Record
from skipdec.engines.host.console import markdown_table

FIGURES = ROOT / "docs" / "benchmarks" / "peers"
_BUSY = "step with one core busy ÷ quiet, batch 1"
_BUSY_MODEL = "opt-125m"
_BEST = Mapping[str, Mapping[str, str]]  # peer → cell → its fastest configuration
_DEFAULT_CELLS = ("opt-125m:int8", "opt-1.3b:int8", "opt-1.3b:int4")


@dataclass(frozen=True)
class Run:
    """One model with one kind of weights, converted for all engines."""

    environment: Environment
    directories: Mapping[str, Path]  # by engine
    cells: tuple[Cell, ...]
    threads: int

    def search(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return milliseconds of one try by peer, configuration and cell, without failed starts."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for peer in self.directories.keys() - {"skipdec"}:
            for name in CONFIGURATIONS[peer]:
                try:
                    with ExitStack() as stack:
                        worker = self._start(stack, peer, name)
                        times = {cell.name: self._timed(cell, worker, 1) for cell in self.cells}
                except WorkerError as error:
                    print(f"{peer}, {name}: not run here ({error})", file=sys.stderr)
                    continue
                found.setdefault(peer, {})[name] = times
        return found

    def measure(self, best: _BEST, starts: int, rounds: int, *, busy: bool) -> dict[str, object]:
        """Return times by cell and engine, one per start."""
        times: dict[str, dict[str, list[float]]] = {}
        for _ in range(starts):
            with ExitStack() as stack:
                wanted = {(peer, name) for peer in best for name in best[peer].values()}
                workers = {key: self._start(stack, *key) for key in {("skipdec", ""), *wanted}}
                for cell in self.cells:
                    for engine in self.directories:
                        name = "" if engine == "skipdec" else best[engine][cell.name]
                        found = self._timed(cell, workers[engine, name], rounds)
                        times.setdefault(cell.name, {}).setdefault(engine, []).append(found)
                if busy:
                    neighbour = stack.enter_context(Neighbour())
                    for engine in self.directories:
                        name = "" if engine == "skipdec" else best[engine][self.cells[0].name]
                        ratio = busy_ratio(workers[engine, name], neighbour)
                        times.setdefault(_BUSY, {}).setdefault(engine, []).append(ratio)
        goals = {cell.name: cell.goal for cell in self.cells}
        return {
            "cells": {
                name: {"goal": goals.get(name, 1.0), "times": engines}
                for name, engines in times.items()
            },
            "configurations": best,
        }

    def _start(self, stack: ExitStack, engine: str, name: str) -> Worker:
        python = Path(sys.executable) if engine == "skipdec" else self.environment.python
        configuration = CONFIGURATIONS[engine][name]
        return stack.enter_context(
            started(python, configuration, self.directories[engine], self.threads)
        )

    def _timed(self, cell: Cell, worker: Worker, rounds: int) -> float:
        worker.seconds(cell.rows, cell.prompt, 2)  # touches memory and chooses kernels
        return median(cell.milliseconds(worker) for _ in range(rounds))


def main() -> None:
    """Search if necessary, measure the requested cells, and draw the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", nargs="+", default=_DEFAULT_CELLS, metavar="MODEL:WEIGHTS")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--search", action="store_true", help="try the peers' options again")
    parser.add_argument("--keep", action="store_true", help="measure our existing bundle")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-peers")
    parser.add_argument("--work", type=Path, help="checkpoints and bundles (ENVIRONMENT/models)")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="directory of JSON files")
    arguments = parser.parse_args()

    environment = Environment(arguments.environment)
    environment.prepare()
    record = Record.here(arguments.figures)
    versions = {
        "skipdec": version("skipdec"),
        "ONNX Runtime": version("onnxruntime"),
        **environment.versions(),
    }
    for text in arguments.cells:
        model, _, weights = text.partition(":")
        if model not in MODELS or weights not in ("int8", "int4"):
            parser.error(f"--cells is {text}; allowed: {', '.join(MODELS)}, then :int8 or :int4")
        work = (arguments.work or arguments.environment / "models") / model
        directories = environment.convert(model, weights, work, keep=arguments.keep)
        wanted = tuple(cells(weights, is_opt=MODELS[model].is_opt, has_amx=Machine.here().has_amx))
        run = Run(environment, directories, wanted, arguments.threads)
        options = {"threads": arguments.threads, "rounds": arguments.rounds}
        search = f"{model} {weights}, search"
        if arguments.search or search not in record.read()["parts"]:
            record.add(search, {**options, "tried": run.search()}, versions)
        best = fastest(record.read()["parts"][search]["tried"])
        busy = text == f"{_BUSY_MODEL}:int8"
        found = run.measure(best, arguments.starts, arguments.rounds, busy=busy)
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
