"""How ``--data`` is read: the options of all commands that take data."""

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
LongPrompts = Annotated[
    Literal["refuse", "drop", "cut"],
    typer.Option(
        "--long-prompts",
        help="drop rows, or cut prompts, that are too long",
        rich_help_panel="Data",
    ),
]
PassageWords = Annotated[
    str | None,
    _option("--passage-words", "PROMPT+COMPLETION, how a text is cut (24+120)"),
]
