"""Where a directory of results may be put."""

from __future__ import annotations

import os
from pathlib import Path


def place_problems(target: Path, *, mark: str, kind: str, force: bool) -> list[str]:
    """Why no result may be written to ``target``, an absolute path; changes nothing.

    Allowed: a name that is free, an empty directory, and with ``force`` another result: a directory
    that holds the file ``mark``, as every ``kind`` ("a bundle") does. Never anything else, so that
    a slip of the keyboard can't replace a directory of other files.
    """
    problems = []
    if not target.name:
        problems.append("is the root of the file system; name a directory in it")
    if target.exists() and not is_empty_directory(target):
        if not (target / mark).is_file():
            problems.append(f"exists and is not {kind}; choose another name or move it away")
        elif not force:
            problems.append("exists; pass --force to replace it, or choose another name")
    ancestor = next((parent for parent in target.parents if parent.exists()), target)
    if not ancestor.is_dir():
        problems.append(f"lies below {ancestor}, which is not a directory")
    elif not os.access(ancestor, os.W_OK | os.X_OK):
        problems.append(f"can't be written: no permission to create files in {ancestor}")
    return problems


def is_empty_directory(path: Path) -> bool:
    """Whether ``path`` is a directory without entries."""
    return path.is_dir() and not any(path.iterdir())
