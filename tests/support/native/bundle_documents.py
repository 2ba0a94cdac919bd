"""Change a bundle's JSON documents and keep their digests and records valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skipdec.engines.bundle import file_record
from skipdec.engines.bundle.place import NGRAMS_NAME
from skipdec.engines.documents import sealed_text

Edit = Callable[[dict[str, Any]], object]


def edit(bundle: Path, name: str, change: Edit) -> None:
    """Apply ``change`` to the document ``name`` of a bundle and seal it again."""
    document = json.loads((bundle / name).read_bytes())
    change(document)
    text = json.dumps(document) if name == "tokenizer.json" else sealed_text(document)
    (bundle / name).write_text(text)
    if name == "tokenizer.json":
        reseal(bundle, name)


def reseal(bundle: Path, name: str) -> None:
    """Update the manifest's record of the file ``name``."""
    record = file_record(bundle, name).model_dump()
    edit(bundle, "manifest.json", lambda manifest: _record(manifest, name).update(record))


def _record(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return next(record for record in manifest["files"] if record["path"] == name)


def add_ngrams(bundle: Path, content: str) -> None:
    """Add a file of n-grams with ``content`` to a bundle."""
    (bundle / NGRAMS_NAME).write_text(content)
    record = file_record(bundle, NGRAMS_NAME).model_dump()

    def add(manifest: dict[str, Any]) -> None:
        manifest["ngrams"] = NGRAMS_NAME
        manifest["files"].append(record)

    edit(bundle, "manifest.json", add)


def add_drafts(manifest: dict[str, Any]) -> None:
    """Add a draft layer scoring 32 tokens and a head of 64 that reuse files of other engines.

    The graphs belong to layer 1 and the head, so a test may read the manifest but not run it.
    """

    def another(index: int, **changes: object) -> dict[str, Any]:
        copied: dict[str, Any] = json.loads(json.dumps(manifest["engines"][index]))
        return copied | changes

    layer = another(2, name="layer_draft", layer_index=None)
    head = another(-1, name="head_draft")
    head["outputs"][0]["shape"][1] = 64
    own = another(-1, name="head_trained")
    own["outputs"][0]["shape"][1] = 32
    joins = []
    for kind, count in (("states", 3), ("entry", 2)):
        join = another(2, name=f"{kind}_draft", kind=kind, layer_index=None)
        (states, *_), (made, *_) = join["inputs"], join["outputs"]
        states.update(name="states", role="states")
        states["shape"][2] *= count
        joins.append(join | {"inputs": [states], "outputs": [made]})
    manifest["trained_draft"] = {
        "reads": [2, 3, 6],
        "token_ids": [*range(32)],
        "states": joins[0],
        "entry": joins[1],
        "layer": layer,
        "head": own,
    }
    manifest["draft_head"] = {"tokens": 64, "engine": head}
