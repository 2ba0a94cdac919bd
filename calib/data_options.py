"""How ``--data`` is read: the options of ``tune``, ``calibrate``, ``evaluate`` and ``fit``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer


def _option(name: str, text: str) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(name, help=text, rich_help_panel="Data", show_default=False)


DataFormat = Annotated[
    Literal["auto", "jsonl", "csv", "text", "dataset"], _option("--format", "(by the file's name)")
]
DataPreset = Annotated[
    Literal["e2e", "tldr", "cnn-dm"] | None,
    _option("--preset", "columns and templates of a known data set"),
]
PromptColumn = Annotated[str | None, _option("--prompt-column", "(the preset's, or prompt)")]
CompletionColumn = Annotated[
    str | None, _option("--completion-column", "(the preset's, or completion)")
]
PromptTemplate = Annotated[
    str | None, _option("--prompt-template", "e.g. '{prompt}<sep>' ({prompt})")
]
CompletionTemplate = Annotated[
    str | None, _option("--completion-template", "e.g. ' {completion}' ({completion})")
]
PassageWords = Annotated[
    str | None,
    _option("--passage-words", "PROMPT+COMPLETION, how a text is cut (24+120)"),
]
