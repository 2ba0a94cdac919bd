"""Bundles as they were in format 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skipdec.engines.documents import canonical_text
from skipdec.engines.manifest import json_digest


def unchanged(document: dict[str, Any]) -> None:
    """Return the document unchanged."""


def write_old_manifest(
    bundle: Path, edit: Callable[[dict[str, Any]], object] = unchanged
) -> dict[str, Any]:
    """Write the manifest of ``bundle`` in format 2, edited and with a valid digest; return it."""
    path = bundle / "manifest.json"
    document: dict[str, Any] = json.loads(path.read_bytes())
    del document["kv_cache"], document["digest"]
    document["format_version"] = 2
    edit(document)
    document["digest"] = json_digest(document)
    path.write_text(canonical_text(document))
    return document


def write_old_schedule(bundle: Path) -> None:
    """Write the schedule of ``bundle`` in format 2."""
    path = bundle / "schedule.json"
    schedule = json.loads(path.read_bytes())["schedule"]
    path.write_text(canonical_text({"digest": json_digest(schedule), "schedule": schedule}))


def make_old(bundle: Path, edit: Callable[[dict[str, Any]], object] = unchanged) -> None:
    """Write both in format 2."""
    write_old_manifest(bundle, edit)
    write_old_schedule(bundle)
