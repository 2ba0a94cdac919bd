"""Run commands, and measure the memory of a process and its children."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from skipdec.engines.errors import SkipDecError

_PROC = Path("/proc")


def skipdec_command(*arguments: str) -> list[str]:
    """Return the command line that runs ``skipdec`` with this process's Python."""
    return [sys.executable, "-c", "from skipdec.cli import main; main()", *arguments]


def run_command(command: Sequence[str]) -> str:
    """Run ``command`` to its end and return its stdout.

    Raises SkipDecError with the last lines of stderr if the command fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SkipDecError(
            " ".join(command), f"ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return done.stdout


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
