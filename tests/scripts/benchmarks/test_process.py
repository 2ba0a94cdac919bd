"""Peak memory covers the command and its children; failures have a reason."""

from __future__ import annotations

import sys

import pytest
from benchmarks.process import run_measured, skipdec_command

from skipdec.engines.errors import SkipDecError

HOLD = "import time; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); "
MEGABYTE = 2**20


def test_memory_of_children_counts() -> None:
    child = HOLD.format(size=64 * MEGABYTE) + "time.sleep(0.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    measured = run_measured([sys.executable, "-c", parent])
    assert 64 * MEGABYTE < measured.peak_anonymous < 256 * MEGABYTE
    assert measured.seconds > 0.5


def test_stdout_is_returned_and_failures_carry_stderr() -> None:
    assert "schedule" in run_measured(skipdec_command("--help")).stdout
    with pytest.raises(SkipDecError, match="ended with 3: the reason"):
        run_measured(
            [sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)"]
        )
