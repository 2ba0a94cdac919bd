"""Memory and CPU limits that Linux control groups put on this process.

A group is bound by its own limits and those of its ancestors, in cgroup v1 and v2; the smallest
limit applies. Systems without control groups have no limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self")


def memory_limit(process: Path = _PROCESS) -> int | None:
    """Return the bytes that the groups of ``process`` may use, or None without a limit."""
    limits = [
        int(text)
        for group in _groups("memory", process)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(group / name).strip()).isdecimal()  # "max": no limit
    ]
    return min(limits, default=None)


def processor_quota(process: Path = _PROCESS) -> float | None:
    """Return the CPU quota of the groups of ``process`` in processors, or None without one."""
    quotas = []
    for group in _groups("cpu", process):
        times = _read(group / "cpu.max") or (
            f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        )
        match times.split():  # microseconds; "max" and -1: no quota
            case [quota, period] if quota.isdecimal() and period.isdecimal():
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(controller: str, process: Path) -> Iterator[Path]:
    """Yield the directories of the groups that bind ``process``, in both hierarchies."""
    paths: dict[str, str] = {}  # by controller; cgroup v2 uses ""
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
            # A container may see its own group at the mount, under a path of the host.
            inside = Path(own).relative_to(root) if Path(own).is_relative_to(root) else Path()
            group = Path(place) / inside
            yield from (one for one in (group, *group.parents) if one.is_relative_to(place))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
