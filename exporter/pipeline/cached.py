"""Bundles of checkpoints that a command was given in place of one: exported once, into a cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from ...engines.bundle.place import MANIFEST_NAME, bundle_place
from ...engines.checking import expanded
from ...engines.errors import CheckpointError, did_you_mean
from ...engines.host.installation import own_version, require_extra
from ...engines.manifest import FORMAT_VERSION
from ..architecture.architecture import short_names
from ..checkpoint.hub import CheckpointDirectory, locate
from ..checkpoint.mistaken import mistaken
from ..config import CheckpointSource

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def cached_bundle(model: str, options: dict[str, str], *, quiet: bool = False) -> Path | None:
    """Return the bundle of the checkpoint ``model``; None if that is no checkpoint's name.

    ``options`` are an export's, e.g. ``{"quantize": "int8"}``. A bundle is exported, and verified,
    by ``skipdec export`` in a process of its own, unless the cache holds one of the same files and
    options. It appears there when it is whole; an interrupted export is resumed by the next call.
    Raises CheckpointError, MissingExtraError, and SystemExit with an export's code if it fails.
    """
    if not _is_checkpoint(model):
        return None
    directory = locate(CheckpointSource(model=model))
    chosen = [value for value in options.values() if value not in ("none", "float32")]
    name = "-".join([directory.name.rpartition("/")[2], *chosen, _key(directory, options)])
    target = _cache() / name
    if (target / MANIFEST_NAME).is_file():
        return target
    require_extra("export", f"exporting {model}")
    if not quiet:
        sys.stderr.write(f"exporting {model} once, to {target}\n")
    flags = [part for key, value in options.items() for part in (f"--{key}", value)]
    command = [sys.executable, "-P", "-m", "skipdec", "export", *flags, "-o", str(target)]
    done = subprocess.run(
        [*command, *(["-q"] if quiet else []), "--", model],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return target


def _is_checkpoint(model: str) -> bool:
    path = expanded(model)
    if (path / "config.json").is_file():
        return True
    if path.exists():
        if (problem := mistaken(path)) is not None:
            raise CheckpointError(model, problem)
        return False
    if _is_unfinished(path):
        return False
    if model in short_names() or _HUB_ID.fullmatch(model) is not None:
        return True
    raise CheckpointError(
        model,
        f"does not exist; {did_you_mean(model, short_names())}allowed: a directory made by "
        "'skipdec export', or a checkpoint: its directory, hub id or short name",
    )


def _is_unfinished(path: Path) -> bool:
    """Return True where opening a bundle says that it was not finished, or finishes it."""
    place = bundle_place(path)
    return place.partial.exists() or place.is_interrupted


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "skipdec" / "bundles"


def _key(directory: CheckpointDirectory, options: dict[str, str]) -> str:
    """Return a hash of what a bundle depends on: the files by size and time, and the options."""
    files = (path for path in sorted(directory.path.iterdir()) if path.is_file())
    described = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    parts = [own_version(), FORMAT_VERSION, str(directory.path), described, options]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
