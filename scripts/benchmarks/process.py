"""Run a command and measure wall clock and peak memory, including children."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skipdec.engines.errors import SkipDecError

_INTERVAL_SECONDS = 0.02
_PROC = Path("/proc")


@dataclass(frozen=True)
class MeasuredProcess:
    """Figures of a command that succeeded."""

    stdout: str
    seconds: float
    peak_anonymous: int  # bytes: maximum sampled sum of RssAnon; 0 without /proc


def skipdec_command(*arguments: str) -> list[str]:
    """Return the command line that runs ``skipdec`` with this process's Python."""
    return [sys.executable, "-c", "from skipdec.cli import main; main()", *arguments]


def run_measured(command: Sequence[str]) -> MeasuredProcess:
    """Run ``command`` to its end, sampling the RssAnon of it and its children.

    Mapped files, such as weights of a checkpoint or bundle, don't count. Raises SkipDecError with
    the last lines of stderr if the command fails.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(_INTERVAL_SECONDS)
        seconds = time.perf_counter() - start
        stdout.seek(0)
        stderr.seek(0)
        if process.returncode != 0:
            raise SkipDecError(
                " ".join(command), f"ended with {process.returncode}: {stderr.read()[-2000:]}"
            )
        return MeasuredProcess(stdout.read(), seconds, peak)


def anonymous_bytes(pid: int) -> int:
    """Return the current RssAnon of a process and its descendants in bytes; 0 if it has ended."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
        children = [
            int(child)
            for task in (_PROC / str(pid) / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")]
    return sum(own) * 1024 + sum(anonymous_bytes(child) for child in children)
