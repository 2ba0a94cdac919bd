"""``python -m … PARENT SECONDS MEMORY MODULE ARGUMENTS``: run a module tied to its parent.

However the parent ends, SIGKILL included, the kernel kills this process (on Linux; elsewhere it
ends when it next reads or writes). The kernel also ends it after SECONDS of processor time, and
refuses it address space beyond MEMORY bytes; 0 is no limit.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tied_command(module: str, *arguments: str, seconds: int = 0, memory: int = 0) -> list[str]:
    """Return the command that runs a module tied to this process, in these limits."""
    limits = (os.getpid(), seconds, memory)
    return [sys.executable, "-P", "-m", __name__, *map(str, limits), module, *arguments]


def main() -> None:
    """Tie this process to the one with the id PARENT, limit it, then run MODULE."""
    parent, seconds, memory = map(int, sys.argv[1:4])
    module = sys.argv[4]
    del sys.argv[1:5]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before prctl took effect
            return
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_AS, memory)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _limit(kind: int, most: int) -> None:
    """Set a soft limit to ``most``, or to the hard limit if that is lower; leave no core dump."""
    if not most:
        return
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
