"""``python -m … PARENT MODULE ARGUMENTS``: run a module in a process that ends with its parent.

However the parent ends, SIGKILL included, the kernel kills this process (on Linux; elsewhere it
ends when it next reads or writes).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to the one with the id PARENT, then run MODULE."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before prctl took effect
            return
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
