"""The processes that render chat templates."""

from __future__ import annotations

from pathlib import Path


def template_workers() -> set[int]:
    """Return the ids of this process's children that render."""
    lists = Path("/proc/self/task").glob("*/children")
    pids = {int(pid) for listed in lists for pid in listed.read_text().split()}
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}
    return {pid for pid, line in lines.items() if "template_worker" in line}
