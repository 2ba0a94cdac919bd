"""Every relative link and anchor of the pages resolves."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from page_blocks import PAGES, ROOT


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return GitHub's anchors of the headings: lower case, hyphens for spaces, no other signs."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


def test_the_site_names_every_page() -> None:
    """The build does not report pages that are missing from the navigation."""
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"][
        "nav"
    ]
    named = re.findall(r"[\w/-]+\.md", str(navigation))
    assert len(named) == len(set(named))
    assert {f"docs/{name}" for name in named} >= {page for page in PAGES if page[:5] == "docs/"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    source = ROOT / page
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(source.read_text(encoding="utf-8"))):
        name, _, anchor = unquote(link).partition("#")
        if ":" in name:
            continue
        target = (source.parent / name).resolve() if name else source
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []
