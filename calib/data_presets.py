"""Column names and prompt templates of data sets that people bring as their own files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PresetName = Literal["e2e", "tldr", "cnn-dm"]


@dataclass(frozen=True)
class Preset:
    """Where prompt and completion stand, and the text that is made of them.

    ``{prompt}`` and ``{completion}`` in the templates stand for the columns' texts.
    """

    prompt_column: str
    completion_column: str
    prompt_template: str = "{prompt}"
    completion_template: str = "{completion}"


DEFAULT = Preset("prompt", "completion")

PRESETS: dict[PresetName, Preset] = {
    # E2E NLG: a meaning representation and one of its human references a row.
    "e2e": Preset("mr", "ref"),
    # Reddit TL;DR (Webis-TLDR-17): a post and its author's summary.
    "tldr": Preset("content", "summary", "{prompt}\nTL;DR:", " {completion}"),
    # CNN/DailyMail: an article and its highlights.
    "cnn-dm": Preset("article", "highlights", "{prompt}\nTL;DR:", " {completion}"),
}
