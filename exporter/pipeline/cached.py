"""A cache of bundles, exported for commands that get a checkpoint in place of a bundle."""

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
    """Return the bundle of the checkpoint ``model``; None if ``model`` names no checkpoint.

    ``options`` are those of the export, e.g. ``{"quantize": "int8"}``. Unless the cache holds a
    bundle of the same files and options, ``skipdec export`` makes and verifies one in a process of
    its own. It appears when it is complete; the next call resumes an interrupted export.
    Raises CheckpointError, MissingExtraError, and SystemExit with the code of a failed export.
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
    """Return True for an unfinished bundle, which opening reports or finishes."""
    place = bundle_place(path)
    return place.partial.exists() or place.is_interrupted


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "skipdec" / "bundles"


def _key(directory: CheckpointDirectory, options: dict[str, str]) -> str:
    """Return a hash of the checkpoint's files, by size and time, and of the options."""
    files = (path for path in sorted(directory.path.iterdir()) if path.is_file())
    described = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    parts = [own_version(), FORMAT_VERSION, str(directory.path), described, options]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
