"""This machine's processor: its instruction sets and the cores that we may use."""

from __future__ import annotations

import os
from pathlib import Path


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction-set flags of the first processor; empty where the system has no cpuinfo."""
    return frozenset(_cpuinfo_value(cpuinfo, ("flags", "Features")).split())


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name for people; empty where the system does not tell."""
    return _cpuinfo_value(cpuinfo, ("model name",))


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpuinfo_value(cpuinfo: Path, keys: tuple[str, ...]) -> str:
    if not cpuinfo.exists():
        return ""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in keys:
            return value.strip()
    return ""
