"""Children, state and memory of processes, as /proc has them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from skipdec.engines import memory

_PROC = Path("/proc")


def child_processes(pid: int | str = "self") -> set[int]:
    """Return the ids of the child processes of all threads of a process."""
    found: set[int] = set()
    for children in (_PROC / str(pid) / "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found.update(map(int, children.read_text().split()))
    return found


def anonymous_bytes(pid: int) -> int:
    """Return the current RssAnon of a process and its descendants in bytes; 0 if it has ended."""
    own = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        own = memory.anonymous_bytes(_PROC / str(pid) / "status")
    return own + sum(map(anonymous_bytes, child_processes(pid)))


def is_running(pid: int) -> bool:
    """Return True unless a process has ended; it may still be a zombie."""
    try:
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
