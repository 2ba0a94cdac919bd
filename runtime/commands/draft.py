"""``skipdec draft``: show or change the drafts that a bundle recommends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engines.checking import expanded
from ...engines.host.application import Application
from ...engines.host.console import Table, print_json, reports_errors, result_console
from ...engines.host.options import AsJson, BundlePath

if TYPE_CHECKING:
    from ..drafting.bundle import DraftFile

_EPILOG = """
[bold]Examples[/bold]

{examples}

[bold]Drafts[/bold]: own | lookup | layers:N | ends:N | first:N | trained, joined by +, then
,tokens=N | ,adapt=no | ,exact=no | ,head=N; or off; or a file that `skipdec fit --lossless` wrote.
--draft auto of generate, serve and bench runs what the bundle recommends
"""

_Draft = Annotated[
    str, typer.Argument(metavar="FILE.json|DRAFT", help="a file of fit, or e.g. own+ends:3")
]
_Target = Annotated[
    Path, typer.Argument(metavar="BUNDLE|FILE.json", help="a bundle's directory, or a file of fit")
]


def register(app: typer.Typer) -> None:
    """Add the ``draft`` commands to ``app``."""
    commands = Application(no_args_is_help=True)
    for name, command, examples in (
        ("show", show, ("opt-1.3b.skipdec", "draft.json --json")),
        ("set", set_draft, ("opt-1.3b.skipdec draft.json", "opt-1.3b.skipdec own+ends:3")),
    ):
        lines = "\n".join(f"skipdec draft {name} {example}" for example in examples)
        commands.command(name, epilog=_EPILOG.format(examples=lines))(command)
    app.add_typer(commands, name="draft", help="Show or change what a bundle drafts.")


@reports_errors
def show(bundle: _Target, as_json: AsJson = False) -> None:
    """Print the drafts that a bundle recommends, and the measurement by which fit chose them."""
    from ...engines.bundle import EngineBundle
    from ..drafting.bundle import bundle_draft_file, read_draft_file

    path = Path(expanded(str(bundle)))
    is_file = os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises for a long name)
    found = read_draft_file(path) if is_file else bundle_draft_file(EngineBundle.open(path))
    if as_json:
        print_json(None if found is None else found.to_document())
    elif found is None:
        typer.echo("own (the bundle has no draft.json)")
    else:
        _print(found)


@reports_errors
def set_draft(bundle: BundlePath, draft: _Draft) -> None:
    """Change what --draft auto runs with a bundle, without rebuilding engines."""
    from ..drafting.bundle import write_draft

    typer.echo(write_draft(bundle, draft).text)


def _print(found: DraftFile) -> None:
    console = result_console()
    console.print(found.text, markup=False)
    if found.measured is None:
        console.print("not measured")
        return
    rows = [(name, _shown(value)) for name, value in _flat("", found.measured)]
    Table(("measured", "value"), rows).print(console)


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (any JSON value)
    """Return the values of nested objects with the keys that lead to each."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        entry
        for key, inner in value.items()
        for entry in _flat(f"{prefix}, {key}" if prefix else str(key), inner)
    ]


def _shown(value: Any) -> str:  # noqa: ANN401  (any JSON value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "–" if value is None else str(value)
