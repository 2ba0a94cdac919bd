"""Fold members of classes into their class in the site's search index.

    PYTHONPATH=scripts python -m pages.search site/search.json

The search ranks titles first, so that "schedule" found twenty attributes of that name before the
page about schedules. A member is still found through its class.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PAGE = "reference/python/"
MEMBER_LEVEL = 4  # heading level; a class has 3


def folded(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``items`` without members, adding their titles and texts to their class's text.

    Members follow their class in ``items``.
    """
    kept: list[dict[str, Any]] = []
    for item in items:
        if item["location"].startswith(PAGE) and item["level"] >= MEMBER_LEVEL:
            kept[-1]["text"] += f"<p>{item['title']}</p>{item['text']}"
        else:
            kept.append(dict(item))
    return kept


def main(path: Path) -> None:
    """Fold the index at ``path``."""
    index = json.loads(path.read_text(encoding="utf-8"))
    index["items"] = folded(index["items"])
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
