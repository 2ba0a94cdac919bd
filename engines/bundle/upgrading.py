"""Conversion of a bundle's manifest and schedule from format 2 to the current format.

In format 2 the manifest's digest was that of its JSON without spaces, the KV cache was not
described (it follows from the target), and schedule.json had neither plan nor presets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..documents import canonical_text, parse_json, read_file
from ..errors import BundleError
from ..manifest import (
    FORMAT_VERSION,
    UPGRADED_VERSION,
    KVCacheSpec,
    Manifest,
    json_digest,
)
from ..targets import TARGETS, target_of
from .bundle import EngineBundle
from .files import (
    EXPORT_AGAIN,
    HeldDirectory,
    file_problems,
    read_manifest,
    read_schedule,
    replace_file,
    require_bundle,
    write_schedule,
)
from .place import MANIFEST_NAME, SCHEDULE_NAME, WriterLock, bundle_place

_DROPPED_FIELD = "int8_weight_bits"  # once in the precision; redundant with the weights
_OLD_SCHEDULE_KEYS = {"digest", "schedule"}

Resolve = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Builds the content of schedule.json (see ``write_schedule``) from an ExitSchedule's JSON."""


def upgrade(path: Path, resolve: Resolve) -> bool:
    """Convert manifest and schedule of the bundle at ``path`` to the current format.

    Each is replaced atomically, the manifest first; if killed in between, the next call finishes.
    Returns False if both were current. Graphs are hashed first, weights are not.

    Raises BundleError for a bundle that is damaged, of another format, or being written. If only
    the schedule is damaged, the manifest is upgraded all the same.
    """
    place = bundle_place(path)
    require_bundle(place.old if place.is_interrupted else place.target)
    with WriterLock(place.target):
        place.repair()
        root = HeldDirectory(place.target)
        manifest = _old_manifest(root)
        if manifest is not None:
            text = manifest.with_digest().to_json()
            replace_file(place.target / MANIFEST_NAME, text.encode())
        schedule = _old_schedule(root)
        if schedule is not None:
            write_schedule(place.target, resolve(schedule))
        EngineBundle.open(place.target)
    return manifest is not None or schedule is not None


def _old_manifest(root: HeldDirectory) -> Manifest | None:
    """Return the manifest in the current format, or None if it already has it."""
    subject = str(root.path / MANIFEST_NAME)
    content, document = _read(root, MANIFEST_NAME)
    if document.get("format_version") != UPGRADED_VERSION:
        read_manifest(root)  # raises unless it has the current format
        return None
    _check_digest(content, document, document, subject)
    form = document.get("kernels") or document.get("target")
    if not isinstance(form, str) or form not in TARGETS:
        raise BundleError(subject, f"is for {form!r:.80}; allowed: {', '.join(TARGETS)}")
    if isinstance(precision := document.get("precision"), dict):
        precision.pop(_DROPPED_FIELD, None)
    cache = KVCacheSpec(unused=target_of(form).unused_cache)
    upgraded = document | {
        "format_version": FORMAT_VERSION,
        "kv_cache": cache.model_dump(mode="json"),
    }
    manifest = Manifest.from_document(upgraded, subject)
    if problems := file_problems(root, manifest, manifest.files, hash_weights=False):
        raise BundleError(str(root.path), *problems, f"the bundle is damaged; {EXPORT_AGAIN}")
    return manifest


def _old_schedule(root: HeldDirectory) -> dict[str, Any] | None:
    """Return the ExitSchedule's JSON object; None if the file is current or damaged."""
    try:
        content, document = _read(root, SCHEDULE_NAME)
    except BundleError:
        document = {}
    schedule = document.get("schedule")
    if document.keys() != _OLD_SCHEDULE_KEYS or not isinstance(schedule, dict):
        read_schedule(root)  # raises if it is damaged
        return None
    subject = str(root.path / SCHEDULE_NAME)
    _check_digest(content, document, schedule, subject, "write it with 'skipdec schedule set'")
    return schedule


def _read(root: HeldDirectory, name: str) -> tuple[bytes, dict[str, Any]]:
    subject = str(root.path / name)
    content = read_file(root.locate(name), BundleError, subject=subject, remedy=EXPORT_AGAIN)
    document = parse_json(content, BundleError, subject=subject, remedy=EXPORT_AGAIN)
    if not isinstance(document, dict):
        raise BundleError(subject, f"is a JSON {type(document).__name__}; expected an object")
    return content, document


def _check_digest(
    content: bytes,
    document: dict[str, Any],
    sealed: dict[str, Any],
    subject: str,
    remedy: str = EXPORT_AGAIN,
) -> None:
    """Raise BundleError unless ``document`` is byte-identical to what format 2 wrote.

    ``sealed`` is the part covered by the digest.
    """
    digest = json_digest({key: sealed[key] for key in sealed if key != "digest"})
    if document.get("digest") != digest or content != canonical_text(document).encode():
        raise BundleError(subject, f"does not match its digest: it was edited or damaged; {remedy}")
