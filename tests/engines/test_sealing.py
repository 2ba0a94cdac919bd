"""A document's digest covers exactly the written bytes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from skipdec.engines.documents import document_digest, sealed_text

DOCUMENT = {"a": [1, {"digest": "0" * 64}], "name": '\n  "digest": "', "é": 0.5}


def test_the_digest_hashes_the_bytes_with_its_own_digits_zeroed() -> None:
    lines = sealed_text(DOCUMENT).encode().splitlines(keepends=True)
    (index,) = (at for at, line in enumerate(lines) if line.startswith(b'  "digest": "'))
    found = re.fullmatch(rb'  "digest": "([0-9a-f]{64})",?\n', lines[index])
    assert found is not None
    lines[index] = lines[index].replace(found[1], b"0" * 64)
    assert hashlib.sha256(b"".join(lines)).hexdigest() == found[1].decode()
    assert document_digest(DOCUMENT) == found[1].decode()


def test_the_program_in_the_specification_computes_the_same_digest() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bundle-format.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    content = sealed_text(DOCUMENT).encode()
    assert names["digest_is_right"](content)
    assert not names["digest_is_right"](content.replace(b"0.5", b"0.6"))


def test_resealing_changes_nothing() -> None:
    text = sealed_text(DOCUMENT)
    assert sealed_text(json.loads(text)) == text
