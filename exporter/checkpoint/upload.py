"""Upload of a checkpoint to the hub after checking that it is complete."""

from __future__ import annotations

from pathlib import Path

from ...engines.bundle.hub import push_files
from ..config import CheckpointSource
from .checkpoint import open_checkpoint


def push_checkpoint(
    directory: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """Upload all files of ``directory`` except hidden ones, and return the commit's URL.

    Raises as ``open_checkpoint`` before anything is sent, and as ``push_files``.
    """
    opened = open_checkpoint(CheckpointSource(model=str(directory)))
    assert opened.directory is not None
    root = opened.directory
    paths = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
    files = [path.as_posix() for path in paths if not any(part[0] == "." for part in path.parts)]
    return push_files(root, files, repo_id, private=private, revision=revision, token=token)
