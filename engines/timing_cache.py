"""How long TensorRT's kernels take, measured once and shared by the builds of equal layers.

Builds run at the same time in processes of their own, each with a copy of the file in memory. What
a build has measured is added to what the others have put on disk in the meantime.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import EnvironmentMismatchError


def attach_timing_cache(path: Path, config: Any) -> Any:  # noqa: ANN401  (trt.IBuilderConfig)
    """Give ``config`` a timing cache with what is in ``path``; return it, to be kept until merged.

    Raises EnvironmentMismatchError if the file is of another TensorRT or GPU.
    """
    cache = _parse(path, config)
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        raise _mismatch(path)
    return cache


def merge_timing_cache(path: Path, config: Any, cache: Any) -> None:  # noqa: ANN401
    """Add the entries of ``cache`` to ``path``; other processes see the old file or the new one."""
    with _locked(path):
        merged = _parse(path, config)
        if not merged.combine(cache, ignore_mismatch=False):
            raise _mismatch(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(memoryview(merged.serialize()))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _parse(path: Path, config: Any) -> Any:  # noqa: ANN401
    content = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(content)
    if cache is None:
        raise _mismatch(path)
    return cache


def _mismatch(path: Path) -> EnvironmentMismatchError:
    return EnvironmentMismatchError(
        f"timing cache {path}",
        "was made by another version of TensorRT or on another GPU; "
        "delete it or name another file with --timing-cache",
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file beside ``path``, which stays: others may wait for it."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
