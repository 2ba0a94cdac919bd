"""A typer application whose help shows command examples exactly as they are typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from .help import WIDEST, flags, print_help

C = TypeVar("C", bound=Callable[..., Any])

_WIDTH = 79  # of a line with a command; fits a terminal of 80 columns
_COMMAND = re.compile(r" *(skipdec|torchrun|head|pip) ")
_BREAK = re.compile(r" (?=--?[a-z]|\| )")  # before an option or a pipe


class Application(typer.Typer):
    """A typer.Typer with its own help layout.

    `print_help` shows the options. In the epilog below, commands are never soft-wrapped: long ones
    are continued with backslashes. Other lines form paragraphs, indented like their first line.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  (typer's)
        settings.setdefault("add_completion", False)
        settings.setdefault("cls", CommandGroup)
        super().__init__(rich_markup_mode="rich", **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[C], C]:  # noqa: ANN401
        """Return typer's decorator, with this application's help."""
        return super().command(name, cls=_Command, **settings)


class CommandGroup(TyperGroup):
    """A group of commands whose help is printed by `print_help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  (typer's own)
        """Print the group's commands and options."""
        print_help(self, ctx)


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  (typer's own)
        print_help(self, ctx)
        if self.epilog:
            _print_epilog(self.epilog)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse ``args`` as typer does, but reject a truth value after a flag."""
        switches = flags(self)
        options = args[: args.index("--")] if "--" in args else args
        for option, value in pairwise(options):
            if option in switches and value.lower() in ("true", "false"):
                ctx.fail(f"{option} takes no value; leave {value!r} out")
        return super().parse_args(ctx, args)


def _print_epilog(text: str) -> None:
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    for block in text.strip("\n").split("\n\n"):
        for lines in _paragraphs(block):
            if _COMMAND.match(lines):
                console.print(lines, markup=False, soft_wrap=True)
            else:
                indent = len(lines) - len(lines.lstrip())
                console.print(Padding(lines.strip(), (0, 1, 0, 1 + indent), expand=False))
        console.print()


def _paragraphs(block: str) -> Iterator[str]:
    """Yield commands with their continuation lines, and the prose in between, a line each."""
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
    """Return ``command`` broken at options into lines of at most 79 columns.

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
