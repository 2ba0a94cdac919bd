"""``skipdec fit``: find the schedule that reaches a speed-up or stays within a loss."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from ...engines.bundle import replace_file
from ...engines.bundle.place import MANIFEST_NAME
from ...engines.checking import Option, ValidatedConfig
from ...engines.documents import sealed_text
from ...engines.errors import UsageError
from ...engines.host.console import print_report, stderr_console
from ...engines.host.options import AsJson, Given, Quiet, from_options
from ...engines.host.processor import available_cores
from ...exporter.config import ExportConfig, LoadFormat, chosen_dtype
from ...runtime.commands.options import EngineChoice, opener
from ..fitting.inputs import FitConfig, Goal, MaxLoss, TargetSpeedup
from ..fitting.source import BundleSource, ModelSource, Source

EXAMPLES = """
[bold]Examples[/bold]

skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e --target-speedup 1.5 -o schedule.json
  the lowest loss at 1.5× or more; then:
  skipdec schedule set opt-e2e.skipdec schedule.json

skipdec fit ./opt-e2e --quantize int8 --data dev.csv --preset e2e --target-speedup 1.5 \
-o schedule.json
  exports the checkpoint temporarily; then, with the same precision:
  skipdec export ./opt-e2e --quantize int8 --schedule schedule.json

skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e --max-loss +0.02 --plot front.png
  the fastest that loses at most 0.02 nats per token against full depth

skipdec fit opt-tldr.skipdec --data dev.jsonl --preset tldr --target-speedup 1.5 \
--prompt full --prompt decay
  also tries prompt=decay, which skips layers in long prompts

skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e --target-speedup 1.5 --speedup-of mixed \
--slots 16
  for a server: steps of 16 rows in flight, each at its own position

skipdec fit opt-e2e.skipdec --data dev.jsonl --target-speedup 2 --placement top --decay linear \
--warmup 1
  varies only max and min

Loss: teacher-forced negative log-likelihood of the completions, nats per token, each token at the
depth of its generation. Speed-up: of whole calls, prompts included, one row, at the data's
median lengths, over full depth with equally many tokens. Expected: estimated from bytes (prompts:
from multiply-adds), then lowered where the fastest candidate is measured slower; the chosen
schedule is measured. --speedup-of steps leaves the prompt out; --speedup-of mixed means the steps
of --slots rows in flight, where a step reads every layer that any row runs, so that steep
schedules gain less; bytes alone predict that, and nothing is timed. If the goal can't be met, fit
prints the nearest miss, writes nothing and exits with code 1.

Values in parentheses are the defaults.
"""
_GOAL = "Goal, one of"
Weights = Literal["none", "int8", "int8-block", "int4"]
_MODEL = Option(panel="If it is a MODEL")


class ModelOptions(ValidatedConfig):
    """Export options of a model to fit; omitted ones have `ExportConfig`'s defaults."""

    load_format: Annotated[LoadFormat | None, _MODEL] = Field(
        default=None, description="dummy: random weights (auto)"
    )
    fp16: Annotated[bool, _MODEL] = Field(default=False, description="same as --dtype float16")
    dtype: Annotated[Literal["float32", "float16"] | None, _MODEL] = Field(
        default=None, description="type of the export (float32)"
    )
    quantize: Annotated[Weights | None, _MODEL] = Field(
        default=None, description="format of the weights (none)"
    )
    head_quantize: Annotated[Weights | None, _MODEL] = Field(
        default=None, description="format of the head (as --quantize)"
    )
    keep_bundle: Annotated[Path | None, Option(panel="If it is a MODEL", metavar="DIR")] = Field(
        default=None, description="keep the bundle, with the chosen schedule"
    )


@from_options
def fit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|BUNDLE",
            help="a bundle's directory; or opt-125m, a hub id, a checkpoint's directory",
        ),
    ],
    given: Given[FitConfig],
    engines: EngineChoice,
    model: ModelOptions,
    *,
    target_speedup: Annotated[
        float | None,
        typer.Option(help="lowest loss at this speed-up of calls or more", rich_help_panel=_GOAL),
    ] = None,
    max_loss: Annotated[
        str | None,
        typer.Option(
            help="fastest up to e.g. 1.9 nats per token; +0.05: over full", rich_help_panel=_GOAL
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="the schedule, .json")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="front as .png or .svg")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose the exit schedule that reaches a goal on your data with the lowest loss of quality."""
    from ...engines.host.progress import ConsoleProgress
    from ...runtime.schedule.bundle import schedule_file
    from ..fitting.fitting import fit as run
    from ..fitting.report import fit_parts, report_document

    config = given.build(
        source=_choose_source(source, model, output=output, force=force),
        goal=_choose_goal(target_speedup, max_loss),
    )
    _check_files(output, plot, force=force)
    with ConsoleProgress(quiet=quiet) as progress:
        found = run(config, opener(engines, max_batch_size=config.rows), progress)
    if output is not None:
        text = sealed_text(schedule_file(found.chosen.schedule))
        replace_file(output, text.encode())
        if not quiet:
            stderr_console().print(f"wrote {output}", markup=False)
    if plot is not None:
        from ..fitting.report import plot_fit

        plot_fit(found, plot)
    # A device of null: the bundle's target chose it.
    machine = {"device": engines.device, "threads": engines.threads or available_cores()}
    print_report(report_document(found, machine), fit_parts(found), as_json=as_json)


def _check_files(output: Path | None, plot: Path | None, *, force: bool) -> None:
    """Raise one UsageError that names every file that can't be written."""
    problems = []
    for name, path in (("--output", output), ("--plot", plot)):
        if path is None:
            continue
        if not path.parent.is_dir():
            problems.append(f"{name} {path}: {path.parent} is not a directory; make it")
        if path.is_dir() or (path.exists() and not force):
            problems.append(f"{name} {path}: exists; --force replaces a file, or name another")
    if output is not None and output.suffix != ".json":
        problems.append(f"--output {output}: ends in {output.suffix!r}; allowed: .json")
    if problems:
        raise UsageError("fit", *problems)
    if plot is not None:
        from ..fitting.report import check_picture

        check_picture(plot)


def _choose_goal(target_speedup: float | None, max_loss: str | None) -> Goal:
    """Return the goal, of which exactly one option must be given. Raises UsageError."""
    if target_speedup is not None and max_loss is None:
        return TargetSpeedup(target_speedup)
    if max_loss is not None and target_speedup is None:
        return MaxLoss.parse(max_loss)
    given = "neither was" if max_loss is None else "both were"
    raise UsageError("fit", f"{given} given; give --target-speedup or --max-loss")


def _choose_source(text: str, options: ModelOptions, *, output: Path | None, force: bool) -> Source:
    """Return the bundle at ``text``, which takes no ``options``, or the model of that name.

    A model is exported beside ``output``, or in the directory of temporary files. Raises
    UsageError.
    """
    path = Path(text).expanduser()
    given = options.model_dump(exclude_defaults=True)
    is_bundle = (path / MANIFEST_NAME).is_file()
    if is_bundle and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(text, f"is a bundle, already exported; leave out {flags}, or name a model")
    if is_bundle or (path.is_dir() and not (path / "config.json").is_file()):
        return BundleSource(path)
    formats = {"load_format", "quantize", "head_quantize"}
    config = ExportConfig(
        model=text,
        output=options.keep_bundle,
        force=force,
        **chosen_dtype(options.dtype, fp16=options.fp16),
        **options.model_dump(include=formats, exclude_none=True),
    )
    beside = options.keep_bundle or output
    directory = Path(tempfile.gettempdir()) if beside is None else beside.absolute().parent
    return ModelSource(config, directory)
