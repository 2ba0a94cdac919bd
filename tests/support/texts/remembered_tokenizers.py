"""Remember reports on tokenizer files, because tests copy equal files to many checkpoints.

A reporting process imports transformers and reads only these files of a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skipdec.engines.host.worker import Limits
from skipdec.exporter.checkpoint import tokenizer
from skipdec.exporter.checkpoint.tokenizer import TEXT_FILES

_START = tokenizer._in_limits
_REPORTS: dict[object, Any] = {}


def in_limits(operation: Any, path: Path, limits: Limits, request: str = "") -> Any:  # noqa: ANN401
    """Replace ``tokenizer._in_limits``; start a process only for files not yet read."""
    files = [path] if path.is_file() else _read_files(path)
    contents = tuple((file.name, file.read_bytes()) for file in files)
    key = (operation, contents, limits, request)
    if key not in _REPORTS:
        _REPORTS[key] = _START(operation, path, limits, request)
    return _REPORTS[key]


def _read_files(directory: Path) -> list[Path]:
    paths = (directory / name for name in ("config.json", "tokenizer.json", *TEXT_FILES))
    return [path for path in paths if path.is_file()]
