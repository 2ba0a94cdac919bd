"""Figures of one processor as JSON, in which each new measurement replaces its part."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import Machine

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Record:
    """``directory/KEY.json``, where KEY names the processor."""

    path: Path

    @classmethod
    def here(cls, directory: Path) -> Record:
        """Return the file for the current machine, created by the first ``add``."""
        return cls(directory / f"{Machine.here().key}.json")

    def read(self) -> dict[str, Any]:
        """Return all measurements so far: the machine's fields, and ``parts`` by name."""
        if not self.path.exists():
            return {**Machine.here().document(), "parts": {}}
        document: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return document

    def add(self, part: str, found: Mapping[str, Any], versions: Mapping[str, str]) -> None:
        """Replace one part, recording the commit and the date."""
        document = self.read()
        document["parts"][part] = {
            "commit": current_commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "versions": dict(versions),
            **found,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        self.path.write_text(text, encoding="utf-8")


def current_commit() -> str:
    """Return this checkout's short hash, with ``+`` for uncommitted changes; "" outside git."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no", "--", ":!docs"],
        capture_output=True,
        text=True,
    )
    return found.stdout.strip() + ("+" if changed.stdout else "")
