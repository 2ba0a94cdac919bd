"""Run commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from skipdec.engines.errors import SkipDecError


def skipdec_command(*arguments: str) -> list[str]:
    """Return the command line that runs ``skipdec`` with this process's Python."""
    return [sys.executable, "-m", "skipdec", *arguments]


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
