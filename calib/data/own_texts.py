"""The file of texts that a model writes itself, beside the output for which it writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...engines.documents import read_object
from ...engines.errors import UsageError
from ...exporter.checkpoint.checkpoint import Checkpoint

KEPT = "run the command again: texts that the model wrote are kept"  # after an interruption
_FORMAT = 3  # increment it when engines, sampling or filtering change

Text = dict[str, Any]
"""A line: the text's index and seed, and the columns of a chat, or of a prompt and completion."""


def own_texts_path(output: Path) -> Path:
    """Return the file of the texts for ``output``, beside it."""
    return output.with_name(f"{output.name}.self.jsonl")


@dataclass(frozen=True)
class OwnTexts:
    """The first ``count`` usable texts of ``checkpoint``, as JSON lines in ``path``.

    A file beside it has ``facts``, so that the texts are not used for another model or other
    options.
    """

    path: Path
    checkpoint: Checkpoint
    count: int
    max_length: int
    seed: int

    @cached_property
    def facts(self) -> dict[str, Any]:
        """All that the texts depend on, except their number; hashes every tensor of the model."""
        chat = self.checkpoint.chat
        template = b"" if chat is None else chat.content
        model = sha256(self.checkpoint.content.encode() + template).hexdigest()
        options = {"max_length": self.max_length, "seed": self.seed}
        return {"format": _FORMAT, "model_sha256": model, **options}

    @property
    def facts_path(self) -> Path:
        """The file that contains ``facts``."""
        return self.path.with_suffix(".json")

    @property
    def are_written(self) -> bool:
        """True if no text is missing. Raises as `read`."""
        return len(self.read()[0]) >= self.count

    def read(self) -> tuple[list[Text], int]:
        """Return the texts in the file and their size in bytes, without a truncated last line.

        Raises UsageError for texts of another model or other options, and for damaged texts.
        """
        if not self.path.exists():
            return [], 0
        remedy = "move both files away, or choose another output"
        found = read_object(self.facts_path, UsageError, remedy=remedy)
        if problems := [
            f"holds texts of {name} {found.get(name)!r:.40}; this run writes those of {value!r:.40}"
            for name, value in self.facts.items()
            if found.get(name) != value
        ]:
            raise UsageError(str(self.path), *problems, remedy)
        lines = self.path.read_bytes().splitlines(keepends=True)
        texts: list[Text] = []
        for number, line in enumerate(lines, start=1):
            try:
                text = json.loads(line)
                is_whole = isinstance(text["index"], int) and line.endswith(b"\n")
            except (KeyError, TypeError, ValueError):
                is_whole = False
            if is_whole:
                texts.append(text)
            elif number < len(lines):
                raise UsageError(str(self.path), f"is damaged at line {number}", remedy)
        return texts, sum(map(len, lines[: len(texts)]))
