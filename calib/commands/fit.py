"""``skipdec fit``: find the schedule that reaches a speed-up or stays within a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...engines.bundle import place_problems, replace_file
from ...engines.checking import expanded
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from ...engines.host.options import AsJson, Quiet, from_options
from ...engines.host.processor import available_cores
from ...runtime.commands.options import EngineChoice, opener
from ...runtime.schedule.pictures import FORMATS
from ..fitting.inputs import FitConfig

EXAMPLES = """
Examples:

\b
skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e \\
    --target-speedup 1.5 -o schedule.json
  the lowest loss at 1.5× or more; then:
  skipdec schedule set opt-e2e.skipdec schedule.json

\b
skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e --max-loss +0.02 \\
    --plot front.png
  the fastest that loses at most 0.02 nats per token against full depth

\b
skipdec fit opt-tldr.skipdec --data dev.jsonl --preset tldr \\
    --target-speedup 1.5 --prompt full --prompt decay
  also tries prompt=decay, which skips layers in long prompts

\b
skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e \\
    --target-speedup 1.5 --speedup-of mixed --slots 16
  for a server: steps of 16 rows in flight, each at its own position

\b
skipdec fit opt-e2e.skipdec --data dev.jsonl --target-speedup 2 \\
    --placement top --decay linear
  varies only max and min

Loss: teacher-forced negative log-likelihood of the completions, nats per token, each token at the
depth of its generation. Speed-up: of whole calls, prompts included, one row, at the data's
median lengths, over full depth with equally many tokens. Expected: estimated from bytes (prompts:
from multiply-adds), then lowered where the fastest candidate is measured slower; the chosen
schedule is measured. --speedup-of steps leaves the prompt out; --speedup-of mixed means the steps
of --slots rows in flight, where a step reads every layer that any row runs, so that steep
schedules gain less; bytes alone predict that, and nothing is timed. If the goal can't be met, fit
prints the nearest miss, writes nothing and exits with code 1.
"""


@from_options
def fit(
    config: FitConfig,
    engines: EngineChoice,
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", parser=expanded, help="the schedule, .json"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=expanded, help="front as .png or .svg")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose the exit schedule that reaches a goal on your data with the lowest loss of quality."""
    from ...engines.host.progress import run_job
    from ...runtime.schedule.text import document_text
    from ..fitting.fitting import Fit
    from ..fitting.fitting import fit as run
    from ..fitting.report import fit_parts, plot_fit, report_document

    _check_files(output, plot, force=force, data=config.data.path)

    def write(found: Fit, events: Events) -> None:
        if output is not None:
            replace_file(output, document_text(found.chosen.schedule).encode())
            events.note(f"wrote {output}")
        if plot is not None:
            plot_fit(found, plot)

    # A null device means that the bundle's target chose it.
    machine = {"device": engines.device, "threads": engines.threads or available_cores()}
    run_job(
        lambda events: run(config, opener(engines, max_batch_size=config.rows), events),
        fit_parts,
        write=write,
        document=lambda found: report_document(found, machine),
        done=lambda _: "a schedule is chosen" if output is None else f"{output} is written",
        as_json=as_json,
        quiet=quiet,
    )


def _check_files(output: Path | None, plot: Path | None, *, force: bool, data: Path) -> None:
    """Raise one UsageError that names every file that can't be written.

    Raises MissingExtraError for a plot without matplotlib.
    """
    problems = ["--force needs --output or --plot"] if force and not (output or plot) else []
    for name, path, endings in (("--output", output, (".json",)), ("--plot", plot, FORMATS)):
        if path is None:
            continue
        found = place_problems(path, force=force, data=data)
        problems += [f"{name} {path}: {one}" for one in found]
        if path.suffix.lower() not in endings:
            allowed = ", ".join(endings)
            problems.append(f"{name} {path}: ends in {path.suffix!r}; allowed: {allowed}")
    if problems:
        raise UsageError("fit", *problems)
    if plot is not None:
        require_extra("plot", "skipdec fit --plot")
