"""Measurements of every engine, each in its own process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from benchmarks.neighbour import Neighbour
from benchmarks.peers.configurations import Configuration

WORKER = Path(__file__).parent / "worker.py"
PROMPT = 32  # tokens, for measurements of decoding
_SHORT, _LONG = 4, 44  # tokens; decoding time is the difference of two lengths
_SETTLE_SECONDS = 0.3
_SEEDS = itertools.count()


class WorkerError(Exception):
    """Raised if an engine can't run here, or stopped."""


class Worker:
    """The process of one engine; idle between requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seconds(self, rows: int, prompt: int, generate: int) -> float:
        """Time one call, after the previous engine's threads have stopped spinning."""
        sleep(_SETTLE_SECONDS)
        request = {"rows": rows, "prompt": prompt, "generate": generate, "seed": next(_SEEDS)}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerError(f"a worker stopped: {self._process.args!r}") from error
        return float(self.answer())

    def answer(self) -> str:
        """Return the next line; raises WorkerError if there is none, with the reason on stderr."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"a worker stopped: {self._process.args!r}")
        return line


@contextmanager
def started(
    python: Path, configuration: Configuration, directory: Path, threads: int
) -> Iterator[Worker]:
    """Run an engine's process inside the block. Raises WorkerError if it does not start."""
    options = json.dumps(dict(configuration.options))
    command = [
        str(python),
        str(WORKER),
        configuration.engine,
        str(directory),
        str(threads),
        options,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages for all engines alike
    }
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        worker = Worker(process)
        worker.answer()
        yield worker


@dataclass(frozen=True)
class Cell:
    """One measurement in milliseconds; ``goal`` is the fastest peer's time ÷ ours."""

    name: str
    goal: float
    weights: str = "int8"
    rows: int = 1
    prompt: int = PROMPT
    decodes: bool = True

    def milliseconds(self, worker: Worker) -> float:
        """Time a decode step of the whole batch, or the prompt and its first token."""
        if not self.decodes:
            return 1000 * worker.seconds(self.rows, self.prompt, 1)
        long = worker.seconds(self.rows, self.prompt, _LONG)
        short = worker.seconds(self.rows, self.prompt, _SHORT)
        return 1000 * (long - short) / (_LONG - _SHORT)


def busy_ratio(worker: Worker, neighbour: Neighbour) -> float:
    """Return the ratio of a step at batch 1 with one core kept busy to a quiet step."""
    cell = Cell("", 0.0)
    quiet = cell.milliseconds(worker)
    with neighbour.busy():
        return cell.milliseconds(worker) / quiet


def cells(weights: str, *, is_opt: bool, has_amx: bool) -> list[Cell]:
    """Return the cells: batch 1 and 8, and a prompt of 512 tokens."""
    first, prompt = (1.25, 2.0 if has_amx else 1.5) if is_opt else (1.4, 1.2)
    return [
        Cell("decode, batch 1, ms per step", first, weights, 1),
        Cell("decode, batch 8, ms per step", 1.5, weights, 8),
        Cell("prompt of 512 tokens, ms", prompt, weights, 1, 512, False),
    ]
