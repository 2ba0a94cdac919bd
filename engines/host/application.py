"""Command-line applications whose help never breaks names or the commands of its examples."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

Rows = list[tuple[str, str]]  # name and description

_INDENT, _GAP = 1, 2
_NO_BREAK = "\N{NO-BREAK SPACE}"
_MAX_NAME, _SHARE = 34, 0.42  # maximum columns, and part of the width, of names; longer get a line
WIDEST = 110  # columns; longer lines are hard to read
_TYPES = {"str": "TEXT", "int": "N", "float": "X", "path": "PATH"}  # typer's → ours
BARE_VALUES = "bare_values"  # attribute of a command's function: option → value where none follows
C = TypeVar("C", bound=Callable[..., Any])
_WIDTH = 79  # of a line with a command; fits a terminal of 80 columns
_COMMAND = re.compile(r" *(skipdec|torchrun|head|pip) ")
_NUMBER = re.compile(r"[-+]?[0-9.]+")
_BREAK = re.compile(r" (?=--?[a-z]|\| )")  # before an option or a pipe


def print_help(command: Any, context: Any) -> None:  # noqa: ANN401  (typer's own types)
    """Print on stdout the usage of ``command``, its description, and its options by panel."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = min(console.width, WIDEST)
    usage = " ".join([context.command_path, *_usage(command, context)])
    console.print()
    _print_wrapped(console, f"Usage: {usage}")
    for paragraph in _paragraphs(command.help or ""):
        console.print()
        _print_wrapped(console, paragraph)
    panels = _panels(command, context)
    width = _names_width([name for rows in panels.values() for name, _ in rows], console.width)
    for title, rows in panels.items():
        console.print(f"\n{_INDENT * ' '}{title}", style="bold")
        for name, purpose in rows:
            _print_row(console, name, purpose, width)
    console.print()


def flags(command: Any) -> frozenset[str]:  # noqa: ANN401
    """Return the names of a command's options that take no value."""
    return frozenset(
        name
        for parameter in command.params
        if getattr(parameter, "is_flag", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
    )


def _usage(command: Any, context: Any) -> Iterator[str]:  # noqa: ANN401
    yield "[OPTIONS]"
    if isinstance(command, TyperGroup):
        yield "COMMAND ..."
    for parameter in command.get_params(context):
        if isinstance(parameter, TyperArgument):
            name = _argument(parameter)
            yield name if parameter.required or name.startswith("[") else f"[{name}]"


def _argument(parameter: Any) -> str:  # noqa: ANN401
    return str(parameter.metavar or parameter.name.upper())


def _option(name: str) -> str:
    """Return typer's ``name`` as ``-q, --quiet`` or ``--host TEXT``."""
    name = re.sub(r"<(str|int|float|path)(?: range)?>", lambda match: _TYPES[match[1]], name)
    return name.strip(" /")  # a flag may only have a name for off


def _panels(command: Any, context: Any) -> dict[str, Rows]:  # noqa: ANN401
    """Return the rows of each panel: arguments, options, other panels, a group's commands."""
    found: dict[str, Rows] = defaultdict(list, Arguments=[], Options=[])
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:  # hidden
            continue
        is_argument = isinstance(parameter, TyperArgument)
        panel = getattr(parameter, "rich_help_panel", None)
        found[panel or ("Arguments" if is_argument else "Options")].append(
            (_argument(parameter) if is_argument else _option(record[0]), record[1])
        )
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            found["Commands"].append((name, _paragraphs(inner.help or "")[0] if inner else ""))
    return {title: rows for title, rows in found.items() if rows}


def _names_width(names: Sequence[str], width: int) -> int:
    """Return the width of the name column; longer names get lines of their own."""
    widest = min(_MAX_NAME, int(_SHARE * width))
    return max((len(name) for name in names if len(name) <= widest), default=widest)


def _print_row(console: Console, name: str, purpose: str, width: int) -> None:
    from rich.text import Text

    begin = _INDENT + 1
    column = begin + width + _GAP
    lines = _lines(" ".join(purpose.split()), console.width - column)
    first = Text(begin * " ").append(name, style="cyan")
    if len(name) > width:
        console.print(first)
    else:
        console.print(first.append((column - begin - len(name)) * " ").append(lines.pop(0)))
    for line in lines:
        console.print(f"{column * ' '}{line}")


def _lines(purpose: str, width: int) -> list[str]:
    """Wrap ``purpose``, keeping the bracketed default and range that typer adds on one line."""
    text, bracket, facts = purpose.rpartition(" [")
    if bracket and facts.endswith("]"):
        purpose = f"{text}{bracket}{facts.replace(' ', _NO_BREAK)}"
    lines = wrap(purpose, max(width, 8), break_on_hyphens=False) or [""]
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _print_wrapped(console: Console, text: str) -> None:
    indent = _INDENT * " "
    for line in wrap(
        text, max(console.width - 1, 8), initial_indent=indent, subsequent_indent=indent
    ):
        console.print(line)


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs, each on one line, to be wrapped by width."""
    paragraphs = text.split("\f")[0].strip().split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


class Application(typer.Typer):
    """A typer.Typer with its own help layout.

    Below the options that `print_help` shows, the epilog's commands are continued with backslashes,
    never soft-wrapped. Other lines form paragraphs, indented like their first line.
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
        """Parse ``args`` as typer does, but reject a truth value after a flag.

        An option that may stand alone, such as ``--draft-layer``, gets its value there.
        """
        args = _with_bare_values(args, getattr(self.callback, BARE_VALUES, {}))
        switches = flags(self)
        options = args[: args.index("--")] if "--" in args else args
        for option, value in pairwise(options):
            if option in switches and value.lower() in ("true", "false"):
                ctx.fail(f"{option} takes no value; leave {value!r} out")
        return super().parse_args(ctx, args)


def _with_bare_values(args: Sequence[str], bare: Mapping[str, str]) -> list[str]:
    """Return ``args`` with a value after each option of ``bare`` that no number follows."""
    if not bare:
        return list(args)
    completed: list[str] = []
    for place, argument in enumerate(args):
        if argument == "--":
            return [*completed, *args[place:]]
        completed.append(argument)
        following = args[place + 1] if place + 1 < len(args) else ""
        if argument in bare and _NUMBER.fullmatch(following) is None:
            completed.append(bare[argument])
    return completed


def _print_epilog(text: str) -> None:
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    for block in text.strip("\n").split("\n\n"):
        for lines in _epilog_lines(block):
            if _COMMAND.match(lines):
                console.print(lines, markup=False, soft_wrap=True)
            else:
                indent = len(lines) - len(lines.lstrip())
                console.print(Padding(lines.strip(), (0, 1, 0, 1 + indent), expand=False))
        console.print()


def _epilog_lines(block: str) -> Iterator[str]:
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
