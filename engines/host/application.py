"""A typer application in whose help the examples stand as they are to be typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

C = TypeVar("C", bound=Callable[..., Any])

_WIDTH = 79  # of a line with a command: a terminal of 80 columns shows it whole
_COMMAND = re.compile(r" *(skipdec|torchrun|head|pip) ")
_BREAK = re.compile(r" (?=--?[a-z]|\| )")  # before an option or a pipe


class Application(typer.Typer):
    """As typer's own, but for a command's purpose and the text below its options.

    A paragraph of the purpose is wrapped by the terminal, wherever the docstring breaks its lines.
    Below the options, lines that are commands are never wrapped where a shell would not go on: a
    long one has backslashes. Other lines are paragraphs, or as far indented as the first of them.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  (typer's)
        settings.setdefault("add_completion", False)
        super().__init__(rich_markup_mode="rich", **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[C], C]:  # noqa: ANN401
        """As typer's."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  (typer's own)
        described, epilog = self.help, self.epilog
        self.help, self.epilog = _unwrapped(described or ""), None
        try:
            super().format_help(ctx, formatter)
        finally:
            self.help, self.epilog = described, epilog
        if epilog:
            _print_epilog(epilog)


def _unwrapped(text: str) -> str:
    """``text`` with each paragraph on one line: the terminal's width wraps it, not the source's."""
    paragraphs = text.split("\f")[0].strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _print_epilog(text: str) -> None:
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    for block in text.strip("\n").split("\n\n"):
        for lines in _paragraphs(block):
            if _COMMAND.match(lines):
                console.print(lines, markup=False, soft_wrap=True)
            else:
                indent = len(lines) - len(lines.lstrip())
                console.print(Padding(lines.strip(), (0, 1, 0, 1 + indent), expand=False))
        console.print()


def _paragraphs(block: str) -> Iterator[str]:
    """Commands, each with its continuations, and what stands between them, each on one line."""
    prose: list[str] = []
    for line in block.splitlines():
        if _COMMAND.match(line):
            yield from _joined(prose)
            prose = []
            yield continued(line)
        else:
            prose.append(line)
    yield from _joined(prose)


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        indent = len(lines[0]) - len(lines[0].lstrip())
        yield " " * indent + " ".join(line.strip() for line in lines)


def continued(command: str) -> str:
    """``command`` over several lines where it is longer than 79 columns, broken at options.

    >>> tune = "skipdec tune opt-125m --data train.csv --preset e2e --schedule 2x --mixture 4x"
    >>> print(continued(f"{tune} -o opt-e2e-2x"))
     skipdec tune opt-125m --data train.csv --preset e2e --schedule 2x \\
         --mixture 4x -o opt-e2e-2x
    """
    first = " " * (1 + len(command) - len(command.lstrip()))
    further = first + 4 * " "
    line, *parts = _BREAK.split(command.strip())
    lines, line = [], first + line
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        if len(line) + 1 + len(part) + (0 if is_last else 2) > _WIDTH:
            lines.append(f"{line} \\")
            line = further + part
        else:
            line = f"{line} {part}"
    return "\n".join([*lines, line])
