"""What Linux control groups allow this process: memory, and processor time.

A group is bounded by its own limits and by those of every group above it, in version 2 of the
hierarchy as in version 1: all of them are read, the least counts. Elsewhere there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self")


def memory_limit(process: Path = _PROCESS) -> int | None:
    """Bytes that the groups of ``process`` may hold; None without a limit."""
    limits = [
        int(text)
        for group in _groups("memory", process)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(group / name).strip()).isdecimal()  # "max" is none
    ]
    return min(limits, default=None)


def processor_quota(process: Path = _PROCESS) -> float | None:
    """Processors' worth of time that the groups of ``process`` may use; None without a limit."""
    quotas = []
    for group in _groups("cpu", process):
        times = _read(group / "cpu.max") or (
            f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        )
        match times.split():  # microseconds; "max" and -1 are no quota
            case [quota, period] if quota.isdecimal() and period.isdecimal():
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(controller: str, process: Path) -> Iterator[Path]:
    """Directories of the groups that bound ``process``, in both hierarchies, innermost first."""
    paths: dict[str, str] = {}  # by controller; version 2 has "" for all of them
    for line in _read(process / "cgroup").splitlines():  # 4:memory:/user, or 0::/user
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in _read(process / "mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        root, place = mount.split()[3:5]
        kind, _, options = system.split(" ", 2)
        if kind == "cgroup2":
            own = paths.get("")
        elif kind == "cgroup" and controller in options.split(","):
            own = paths.get(controller)
        else:
            continue
        if own is not None:
            # A container may see its own group at the mount, under a path of the host's.
            inside = Path(own).relative_to(root) if Path(own).is_relative_to(root) else Path()
            group = Path(place) / inside
            yield from (one for one in (group, *group.parents) if one.is_relative_to(place))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
