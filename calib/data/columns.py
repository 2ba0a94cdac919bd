"""Columns that hold prompts and completions, and the templates around their texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...engines.manifest import PROMPT_PLACEHOLDER
from .rows import Row

PresetName = Literal["e2e", "tldr", "cnn-dm"]


@dataclass(frozen=True)
class Preset:
    """The columns of prompt and completion, and templates for their texts.

    ``{prompt}`` and ``{completion}`` in the templates are placeholders for the columns' texts. If
    ``prompt_template`` is None, prompts go into the model's own template, if it has one.
    """

    prompt_column: str
    completion_column: str
    prompt_template: str | None = None
    completion_template: str = "{completion}"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, prompt first; a single name if both are the same."""
        return tuple(dict.fromkeys((self.prompt_column, self.completion_column)))

    def prompt(self, text: str) -> str:
        """Return ``text`` in the prompt template, if there is one."""
        template = self.prompt_template
        return text if template is None else template.replace(PROMPT_PLACEHOLDER, text)

    def completion(self, text: str) -> str:
        """Return ``text`` in the completion template."""
        return self.completion_template.replace("{completion}", text)


DEFAULT = Preset("prompt", "completion")

PRESETS: dict[PresetName, Preset] = {
    # E2E NLG: a meaning representation and one of its human references per row.
    "e2e": Preset("mr", "ref"),
    # Reddit TL;DR (Webis-TLDR-17): a post and its author's summary.
    "tldr": Preset("content", "summary", "{prompt}\nTL;DR:", " {completion}"),
    # CNN/DailyMail: an article and its highlights.
    "cnn-dm": Preset("article", "highlights", "{prompt}\nTL;DR:", " {completion}"),
}


class MissingColumns:
    """Collects missing columns; reports each once, with its first row and the number of others."""

    def __init__(self) -> None:
        self._first: dict[str, Row] = {}
        self._count: dict[str, int] = {}

    def find(self, row: Row, columns: Preset) -> list[str]:
        """Record and return the names that ``row`` lacks."""
        names = [name for name in columns.names if name not in row.columns]
        for name in names:
            self._first.setdefault(name, row)
            self._count[name] = self._count.get(name, 0) + 1
        return names

    def problems(self) -> Iterator[str]:
        """Yield one problem per column; the last one suggests what the existing columns may be."""
        for place, (name, row) in enumerate(self._first.items(), start=1):
            others = self._count[name] - 1
            more = "has 1 other row" if others == 1 else f"have {others:,} other rows"
            also = f", nor {more}" if others else ""
            there = ", ".join(map(repr, row.columns))
            advice = f"; {_advice(row)}" if place == len(self._first) else ""
            yield f"{row.source}: has no {name!r}{also}; its columns are {there}{advice}"


def _advice(row: Row) -> str:
    for name, preset in PRESETS.items():
        if row.columns.keys() >= set(preset.names):
            return f"--preset {name} reads these"
    return "name yours with --prompt-column and --completion-column"
