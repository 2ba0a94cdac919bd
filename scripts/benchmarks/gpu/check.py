"""Run the parts of the GPU check within a call's time, and continue where another call stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu.parts import EXPORT, CheckConfig, Part
from benchmarks.gpu.record import Outcome, Record, State

_SHOWN = 1500  # last characters kept of a part's words
_SCRIPTS = Path(__file__).parents[2]
_RESERVE = 5.0  # seconds at the end of a call, for the page


@dataclass(frozen=True)
class Ended:
    """How a process ended; ``code`` None: it was killed at its time limit."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float


class Progress(Protocol):
    """Told what happens."""

    def __call__(self, words: str, /) -> None:
        """Show one line."""


class Check:
    """Runs parts in order of worth, those of ``record`` not again.

    ``seconds`` is the time of this call. ``save`` gets the record after each part.
    """

    def __init__(
        self,
        config: CheckConfig,
        parts: Sequence[Part],
        record: Record,
        *,
        seconds: float,
        gpu: str,
        save: Callable[[Record], None],
        progress: Progress,
    ) -> None:
        self._config = config
        self._parts = sorted(parts, key=lambda part: part.worth)
        self._record = record
        self._deadline = time.monotonic() + seconds - _RESERVE
        self._gpu = gpu
        self._save = save
        self._progress = progress

    def run(self) -> Record:
        """Run what is left and fits into the time; return the record with it."""
        self._config.work.mkdir(parents=True, exist_ok=True)
        self._save(self._record)
        for part in self._parts:
            if self._record.is_finished(part.name):
                continue
            needed = self._needed_seconds(part)
            if needed > self._left():
                self._progress(
                    f"{part.name}: not begun, needs {needed:.0f} s, {max(self._left(), 0):.0f} s "
                    "are left"
                )
                continue
            self._progress(f"{part.name}: about {needed:.0f} s")
            outcome = self._outcome(part)
            self._progress(f"{part.name}: {outcome.state} after {outcome.seconds:.0f} s")
            self._record = self._record.with_outcome(outcome)
            self._save(self._record)
        return self._record

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _lacks_bundle(self, part: Part) -> bool:
        return part.needs_bundle and not self._config.speed_bundle.exists()

    def _needed_seconds(self, part: Part) -> float:
        return part.seconds + (EXPORT.seconds if self._lacks_bundle(part) else 0)

    def _outcome(self, part: Part) -> Outcome:
        if self._lacks_bundle(part):
            exported = self._run(EXPORT)
            if exported.code != 0:
                return self._bad(part, exported, f"{EXPORT.name}: ")
        ended = self._run(part)
        result = _last_json(ended.stdout)
        if ended.code != 0 or result is None:
            return self._bad(part, ended)
        problems = result.get("problems", [])
        return Outcome(
            name=part.name,
            state="failed" if problems else "passed",
            seconds=ended.seconds,
            gpu=self._gpu,
            result=result,
            output="\n".join(problems)[:_SHOWN],
        )

    def _bad(self, part: Part, ended: Ended, before: str = "") -> Outcome:
        """Return the outcome of a process that failed, hung or printed no result."""
        state: State = "failed"
        words = f"{before}ended with {ended.code}"
        if ended.code is None:
            state = "cut off" if self._left() <= 1 and ended.seconds < part.timeout else "hung"
            words = f"{before}killed after {ended.seconds:.0f} s"
        output = f"{words}: {(ended.stderr or ended.stdout).strip()}"
        if len(output) > _SHOWN:
            output = f"{words}: … {output[-_SHOWN:]}"
        return Outcome(
            name=part.name, state=state, seconds=ended.seconds, gpu=self._gpu, output=output
        )

    def _run(self, part: Part) -> Ended:
        return run_limited(part.command(self._config), min(part.timeout, self._left()))


def run_limited(command: Sequence[str], seconds: float) -> Ended:
    """Run a command in a process group of its own, which is killed after ``seconds``.

    What a killed command has printed is kept; a builder's children end with it.
    """
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command, stdout=stdout, stderr=stderr, env=_environment(), start_new_session=True
        )
        code: int | None = None
        try:
            code = process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
        took = time.monotonic() - start
        stdout.seek(0)
        stderr.seek(0)
        return Ended(code, stdout.read(), stderr.read(), took)


def _environment() -> dict[str, str]:
    """Return this process's environment, where Python also finds ``benchmarks``."""
    paths = [str(_SCRIPTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _last_json(stdout: str) -> dict[str, Any] | None:
    """Return the JSON object that a part printed, whole or as its last line."""
    for text in (stdout, *stdout.strip().splitlines()[-1:]):
        try:
            document = json.loads(text)
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    return None
