"""Measurements of one engine in its own process, with quiet cores and with one core busy."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.peers.configurations import Configuration

WORKER = Path(__file__).parent / "worker.py"
_SHORT, _LONG = 4, 44  # tokens; decoding time is the difference of two lengths
_SECONDS = 3.0  # during which calls are repeated
_SEEDS = itertools.count()


class WorkerError(Exception):
    """Raised if an engine can't run here or has stopped."""


class Worker:
    """The process of one engine; idle between requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seconds(self, rows: int, prompt: int, generate: int) -> float:
        """Time one call."""
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


@contextmanager
def one_core_busy() -> Iterator[None]:
    """Run an endless loop beside the block, on whichever core the system chooses."""
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as loop:
        try:
            yield
        finally:
            loop.kill()


@dataclass(frozen=True)
class Cell:
    """One measurement in milliseconds; ``goal`` is the fastest peer's time ÷ ours.

    With one core busy, peers use the configurations that were fastest in the ``quiet`` cell.
    """

    name: str
    goal: float
    rows: int = 1
    prompt: int = 32  # tokens
    decodes: bool = True
    quiet: str = ""

    def milliseconds(self, worker: Worker) -> float:
        """Time a decode step of the whole batch, or the prompt and its first token."""
        lengths = (_SHORT, _LONG) if self.decodes else (1,)
        calls: dict[int, list[float]] = {length: [] for length in lengths}
        with one_core_busy() if self.quiet else nullcontext():
            worker.seconds(self.rows, self.prompt, 2)  # touches memory and chooses kernels
            end = perf_counter() + _SECONDS
            while perf_counter() < end:
                for length in lengths:
                    calls[length].append(worker.seconds(self.rows, self.prompt, length))
        first, *later = map(median, calls.values())
        return 1000 * ((later[0] - first) / (_LONG - _SHORT) if later else first)


CELLS = (
    Cell("decode, batch 1, ms per step", 1.3),
    Cell("decode, batch 8, ms per step", 1.3, rows=8),
    Cell("prompt of 512 tokens, ms", 1.2, prompt=512, decodes=False),
    Cell("one core busy, batch 1, ms per step", 1.2, quiet="decode, batch 1, ms per step"),
    Cell("one core busy, batch 8, ms per step", 1.2, rows=8, quiet="decode, batch 8, ms per step"),
)
