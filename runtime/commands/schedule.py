"""``skipdec schedule``: show, draw or change an exit schedule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engines.checking import expanded
from ...engines.documents import sealed_text
from ...engines.errors import UsageError, counted, shown
from ...engines.host.console import Part, Table, print_report, reports_errors
from ...engines.host.options import AsJson, BundlePath

if TYPE_CHECKING:
    from ..schedule import ExitSchedule, LayerPlan

_EPILOG = """
Examples:

\b
{examples}

Schedules: full | 2x, 3x, … | 2x:horizon=64,placement=bottom |
linear:max=16,min=8,warmup=1,horizon=64 | power:…,power=2 | exponential:…,rate=3 |
cosine:… | step:…,steps=4 | d3:max=24,min=8,alpha=0.98 | constant:max=12 |
table:table=16/12/8 | a file.json. Placements: top, bottom, unified (constant only),
unified-nested, hierarchical, d3 (with tail=). prompt=decay: depth falls over the prompt, too
"""
_HORIZON = 64

Spec = Annotated[str, typer.Argument(metavar="SCHEDULE", help="e.g. 2x; see below for all forms")]
Shown = Annotated[
    str,
    typer.Argument(metavar="SCHEDULE|BUNDLE", help="e.g. 2x, see below; or a bundle's directory"),
]
Layers = Annotated[
    int | None,
    typer.Option("--layers", min=1, help="decoder layers of the model; a BUNDLE has its own"),
]
Horizon = Annotated[
    int | None,
    typer.Option(
        "--horizon", min=1, help=f"tokens of the decay if SCHEDULE names none ({_HORIZON})"
    ),
]


def register(app: typer.Typer) -> None:
    """Add the ``schedule`` commands to ``app``."""
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for name, command, examples in (
        ("show", show, ("2x --layers 24", "opt-1.3b.skipdec")),
        ("plot", plot, ("4x --layers 24 --horizon 64 -o 4x.svg", "opt-1.3b.skipdec -o own.svg")),
        ("set", set_schedule, ("opt-1.3b.skipdec 2x:horizon=64",)),
    ):
        lines = "\n".join(f"skipdec schedule {name} {example}" for example in examples)
        commands.command(name, epilog=_EPILOG.format(examples=lines))(command)
    app.add_typer(commands, name="schedule", help="Show, draw or change an exit schedule.")


@reports_errors
def show(
    schedule: Shown, layers: Layers = None, horizon: Horizon = None, as_json: AsJson = False
) -> None:
    """Print how many layers, and which, each generated token runs."""
    parsed = _named_schedule(schedule, layers, horizon)
    if as_json:
        typer.echo(sealed_text(_describe(parsed)), nl=False)
    else:
        print_report(None, _parts(parsed), as_json=False)


@reports_errors
def plot(
    schedule: Shown,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", parser=expanded, help="picture, .png or .svg"
        ),
    ],
    layers: Layers = None,
    horizon: Horizon = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="generated tokens to draw")] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
) -> None:
    """Draw layers × positions as a PNG or SVG picture."""
    from ...engines.bundle import require_place
    from ..schedule.plot import plot_schedule

    require_place(output, force=force)
    plot_schedule(_named_schedule(schedule, layers, horizon), output, num_tokens=tokens)
    typer.echo(output)


@reports_errors
def set_schedule(bundle: BundlePath, schedule: Spec, horizon: Horizon = None) -> None:
    """Change the schedule that a bundle runs by default, without rebuilding engines."""
    from ..schedule.bundle import write_schedule
    from ..schedule.text import format_schedule

    typer.echo(format_schedule(write_schedule(bundle, schedule, horizon=horizon)))


def _named_schedule(text: str, layers: int | None, horizon: int | None) -> ExitSchedule:
    """Return the schedule of ``text``, or of the bundle at that path."""
    from ..schedule.bundle import bundle_schedule
    from ..schedule.text import parse_schedule

    # Path.is_dir raises for a name that is too long
    is_document = text.lstrip().startswith("{")
    if is_document or not os.path.isdir(expanded(text)):  # noqa: PTH112
        if layers is None:
            raise UsageError(
                f"schedule {shown(text)}", "needs --layers; or name a bundle's directory"
            )
        return parse_schedule(text, num_layers=layers, horizon=horizon or _HORIZON)
    from ...engines.bundle import EngineBundle

    bundle = EngineBundle.open(text)
    given = {"--layers": layers, "--horizon": horizon}
    if unused := [name for name, value in given.items() if value is not None]:
        raise UsageError(text, f"is a bundle, which has a schedule; omit {', '.join(unused)}")
    return bundle_schedule(bundle)


def _describe(schedule: ExitSchedule) -> dict[str, Any]:
    """Return the JSON of ``schedule show``, which is also a schedule file for every runtime."""
    from ..schedule.text import format_schedule

    return {
        "text": format_schedule(schedule),
        "schedule": schedule.to_document(),
        "average_budget": schedule.average_budget(),
        "segments": [
            {
                "start": segment.start,
                "stop": segment.stop,
                "budget": len(segment.plan),
                "layers": list(segment.plan.layers),
            }
            for segment in schedule.segments
        ],
        "prompt_only_layers": _prompt_only(schedule),
    }


def _parts(schedule: ExitSchedule) -> Iterator[Part]:
    from ..schedule.text import format_schedule

    rows = [
        (name, str(len(plan)), _format_layers(plan.layers)) for name, plan in _prompt_rows(schedule)
    ]
    for segment in schedule.segments:
        stop = "" if segment.stop is None else segment.stop - 1
        tokens = str(segment.start) if stop == segment.start else f"{segment.start}–{stop}"
        rows.append((tokens, str(len(segment.plan)), _format_layers(segment.plan.layers)))
    yield format_schedule(schedule)
    yield Table(("token", "layers run", "layers"), rows)
    mean = schedule.average_budget()
    yield (
        f"mean over {counted(schedule.horizon, 'token')}: {mean:.2f} of "
        f"{schedule.num_layers} layers, {schedule.num_layers / mean:.2f}× fewer "
        "(without prompt, embedding and head)"
    )
    if prompt_only := _prompt_only(schedule):
        yield f"only in the prompt, no KV cache kept: {_format_layers(prompt_only)}"


def _prompt_rows(schedule: ExitSchedule) -> list[tuple[str, LayerPlan]]:
    if schedule.prompt == "full":
        return [("prompt", schedule.full_plan)]
    return [("prompt, first", schedule.full_plan), ("prompt, last", schedule.prompt_plans[-1])]


def _prompt_only(schedule: ExitSchedule) -> list[int]:
    return [layer for layer in range(schedule.num_layers) if schedule.last_index(layer) == -1]


def _format_layers(layers: Iterable[int]) -> str:
    """Return ascending layers as ranges: 0, 9, 10 and 11 are ``0, 9–11``."""
    from ..schedule import LayerPlan

    ranges = LayerPlan(tuple(layers)).ranges
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in ranges)
