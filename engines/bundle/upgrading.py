"""Bundles of format 2, written anew in the present format: two files, no engine.

A manifest of format 2 had the digest of its own JSON without spaces and no word on the KV cache,
which follows from the target; schedule.json had neither plan nor presets.
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
from .directory import HeldDirectory
from .files import (
    EXPORT_AGAIN,
    file_problems,
    read_manifest,
    read_schedule,
    replace_file,
    require_bundle,
    write_schedule,
)
from .place import MANIFEST_NAME, SCHEDULE_NAME, WriterLock, bundle_place

_DROPPED_FIELD = "int8_weight_bits"  # of the precision once: what the weights hold says it too
_OLD_SCHEDULE_KEYS = {"digest", "schedule"}

Resolve = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Makes what schedule.json holds, see ``write_schedule``, of an ExitSchedule's JSON object."""


def upgrade(path: Path, resolve: Resolve) -> bool:
    """Write the manifest and the schedule of the bundle at ``path`` in the present format.

    Each is replaced in one step, the manifest first: where it was killed in between, the next call
    finishes. Returns False if both had that format. Graphs are hashed before, weights are not.

    Raises BundleError for a bundle that is not whole, of another format, or being written. One
    whose schedule alone is damaged is upgraded but for that.
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
    """The manifest as the present format has it; None if it is in that."""
    subject = str(root.path / MANIFEST_NAME)
    content, document = _read(root, MANIFEST_NAME)
    if document.get("format_version") != UPGRADED_VERSION:
        read_manifest(root)  # of the present format, or refused
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
    """The ExitSchedule's JSON object; None if the file has the present format, or is damaged."""
    try:
        content, document = _read(root, SCHEDULE_NAME)
    except BundleError:
        document = {}
    schedule = document.get("schedule")
    if document.keys() != _OLD_SCHEDULE_KEYS or not isinstance(schedule, dict):
        read_schedule(root)  # which says what is wrong with it, if something is
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
    """Raise BundleError unless ``document`` is, byte for byte, what was written in format 2.

    ``sealed`` is the part of it that had a digest.
    """
    digest = json_digest({key: sealed[key] for key in sealed if key != "digest"})
    if document.get("digest") != digest or content != canonical_text(document).encode():
        raise BundleError(subject, f"does not match its digest: it was edited or damaged; {remedy}")
