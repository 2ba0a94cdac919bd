"""draft.json: the drafts that a bundle recommends, and the measurement by which they were chosen.

``docs/bundle-format.md`` specifies it. A bundle without this file recommends ``own``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from ...engines.bundle import EngineBundle
from ...engines.bundle import write_draft as write_document
from ...engines.bundle.files import parse_draft_file
from ...engines.bundle.place import DRAFT_NAME, bundle_place
from ...engines.checking import expanded
from ...engines.constants import integer
from ...engines.errors import BundleError, UsageError, shown
from ...engines.targets import default_device
from ..schedule import ExitSchedule
from ..schedule.bundle import bundle_schedule
from .config import DraftConfig, is_auto, parse_draft
from .resolver import DraftResolver

DRAFT_FORMAT = integer("draft_format")
_SET_AGAIN = "write it with 'skipdec draft set'"


@dataclass(frozen=True)
class DraftFile:
    """Content of a draft.json: what to draft, and how it was measured, if ``fit`` chose it.

    ``config`` is None for no drafts. ``measured`` is for people: acceptance, costs by processor,
    the measured gain and the data.
    """

    config: DraftConfig | None
    measured: Mapping[str, Any] | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any], subject: str) -> Self:
        """Check the JSON object of the file ``subject``. Raises BundleError naming it."""
        if document.get("format") != DRAFT_FORMAT:
            found = shown(document.get("format"))
            raise BundleError(subject, f"has format {found}; allowed: {DRAFT_FORMAT}; {_SET_AGAIN}")
        try:
            config = parse_draft(document["draft"])
        except UsageError as error:
            problems = (f"draft: {problem}" for problem in error.problems)
            raise BundleError(subject, *problems, _SET_AGAIN) from error
        measured = document.get("measured")
        if measured is not None and not isinstance(measured, dict):
            raise BundleError(
                subject, f"measured is {shown(measured)}; allowed: an object or null; {_SET_AGAIN}"
            )
        return cls(config, measured)

    @property
    def text(self) -> str:
        """The canonical text of the drafts, ``off`` for none."""
        return "off" if self.config is None else str(self.config)

    def to_document(self) -> dict[str, Any]:
        """Return the file's JSON object without its digest."""
        measured = None if self.measured is None else dict(self.measured)
        return {"draft": self.text, "format": DRAFT_FORMAT, "measured": measured}


def bundle_draft_file(bundle: EngineBundle) -> DraftFile | None:
    """Return the content of ``bundle``'s draft.json, or None without one. Raises BundleError."""
    document = bundle.read_draft()
    if document is None:
        return None
    return DraftFile.from_document(document, str(bundle.path / DRAFT_NAME))


def recommended_draft(bundle: EngineBundle) -> DraftConfig | None:
    """Return what ``auto`` stands for: the drafts of draft.json, else ``own``; None for none.

    Raises BundleError for a damaged file.
    """
    found = bundle_draft_file(bundle)
    return parse_draft("own") if found is None else found.config


def draft_resolver(
    bundle: EngineBundle,
    own: ExitSchedule | None = None,
    *,
    device: str | None = None,
    default: str | None = None,
) -> DraftResolver:
    """Return the resolver of ``bundle``'s drafts; ``own`` is its schedule, if the caller read it.

    ``device`` is where it runs, such as ``cuda:1``; None: where its target runs by default.
    Raises ScheduleError or BundleError if it has to be read and is invalid.
    """
    return DraftResolver(
        manifest=bundle.manifest,
        device=(device or default_device(bundle.manifest.target)).partition(":")[0],
        own=own or bundle_schedule(bundle),
        default=default,
        recommended=cache(partial(recommended_draft, bundle)),
    )


def read_draft_file(path: str | Path) -> DraftFile:
    """Return the content of the draft file ``path``, which ``fit`` wrote. Raises BundleError."""
    return DraftFile.from_document(parse_draft_file(Path(path), str(path)), str(path))


def write_draft(bundle: str | Path, draft: str | Path | DraftFile) -> DraftFile:
    """Make ``draft`` the drafts that the bundle at ``bundle`` recommends, and return them.

    ``draft`` is a draft file (one that ``fit`` wrote), its path, or a text such as ``own+ends:3``
    or ``off``. The bundle's file is replaced atomically, and may have been missing or damaged.

    Raises BundleError without a bundle or for a damaged ``draft``, and UsageError for drafts that
    do not fit the bundle.
    """
    resolver = draft_resolver(EngineBundle.open(bundle))
    if not isinstance(draft, DraftFile):
        draft = _named_draft(str(draft))
    resolver.check(draft.config)
    write_document(bundle_place(Path(bundle)).target, draft.to_document())
    return draft


def _named_draft(text: str) -> DraftFile:
    """Return the drafts of ``text``, or of the file at that path."""
    if is_auto(text):
        raise UsageError("draft", "is auto, which stands for the bundle's draft; name drafts")
    path = expanded(text)
    if text.endswith(".json") or os.path.isfile(path):  # noqa: PTH113  (a name may be too long)
        return read_draft_file(path)
    return DraftFile(parse_draft(text))
