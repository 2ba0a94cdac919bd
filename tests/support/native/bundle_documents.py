"""Changing a bundle's JSON documents so that their digests and records still hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skipdec.engines.bundle import file_record
from skipdec.engines.documents import sealed_text

Edit = Callable[[dict[str, Any]], object]


def edit(bundle: Path, name: str, change: Edit) -> None:
    """Apply ``change`` to the document ``name`` of a bundle and seal it again."""
    document = json.loads((bundle / name).read_bytes())
    change(document)
    text = json.dumps(document) if name == "tokenizer.json" else sealed_text(document)
    (bundle / name).write_text(text)
    if name == "tokenizer.json":
        record = file_record(bundle, name).model_dump()
        edit(bundle, "manifest.json", lambda manifest: _record(manifest, name).update(record))


def _record(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return next(record for record in manifest["files"] if record["path"] == name)
