"""File descriptors: how many this process has open, and how many it may open."""

from __future__ import annotations

import resource
from pathlib import Path

_LISTED = Path("/proc/self/fd")


def open_descriptors() -> int:
    """Count the descriptors that are open (Linux; elsewhere 0)."""
    try:
        return len(list(_LISTED.iterdir())) - 1  # without the directory's own
    except OSError:
        return 0


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit (``ulimit -n``) towards ``wanted`` and return what it is then.

    It goes no higher than the hard limit and is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if raised <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # a container's policy
        return soft
    return raised
