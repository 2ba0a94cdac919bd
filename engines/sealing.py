"""Documents that hold their own digest: the JSON of ``manifest.json`` and ``schedule.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_NO_DIGEST = "0" * 64
_LINE = (
    '\n  "digest": "'  # once in the text: deeper keys stand further right, texts hold no newline
)


def canonical_text(document: Any) -> str:  # noqa: ANN401  (any JSON value)
    """Canonical key order, two spaces a level, a final newline."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def sealed_text(document: Mapping[str, Any]) -> str:
    """Canonical text of ``document`` with its digest, in place of the one it has, if any.

    The digest is the SHA-256 of this very text with 64 zeros where the digest stands.
    """
    blank = _blank(document)
    return blank.replace(_LINE + _NO_DIGEST, _LINE + _sha256(blank), 1)


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest that `sealed_text` puts there."""
    return _sha256(_blank(document))


def _blank(document: Mapping[str, Any]) -> str:
    return canonical_text({**document, "digest": _NO_DIGEST})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
