"""``skipdec fit``: which schedule reaches a speed-up, or keeps a loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...engines.host.console import print_json, reports_errors, result_console, stderr_console
from .data_options import (
    CompletionColumn,
    CompletionTemplate,
    DataFormat,
    DataPreset,
    LongPrompts,
    PassageWords,
    PromptColumn,
    PromptTemplate,
)

if TYPE_CHECKING:
    from ...runtime.generator import Generator

_EXAMPLES = """
[bold]Examples[/bold]

skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e --target-speedup 1.5 -o schedule.json
  the least loss at 1.5× or more; then: skipdec schedule set opt-e2e.skipdec schedule.json

skipdec fit ./opt-e2e --quantize int8 --data dev.csv --preset e2e --target-speedup 1.5 \
-o schedule.json
  a checkpoint, exported for the time of the fit; then, with the same precision:
  skipdec export ./opt-e2e --quantize int8 --schedule schedule.json

skipdec fit opt-e2e.skipdec --data dev.csv --preset e2e --max-loss +0.02 --plot front.png
  the fastest that loses at most 0.02 nats a token against full depth

skipdec fit opt-tldr.skipdec --data dev.jsonl --preset tldr --target-speedup 1.5 --speedup-of call
  whole calls: long prompts count, and prompt=decay may shorten them

skipdec fit opt-e2e.skipdec --data dev.jsonl --target-speedup 2 --placement top --decay linear \
--warmup 1
  only max and min exit layer vary; --sensitivity shows what the rest would change

Loss: teacher-forced negative log-likelihood of the completions, nats a token, each token at the
depth that generating it has. Speed-up: at the data's median lengths, one row; of steps predicted
from bytes, of prompts from multiply-adds, both lowered where the fastest candidate is measured
slower, and measured for the chosen one. A goal that can't be met: exit code 1, how near it came,
nothing written.

Values in round brackets are the defaults.
"""

_GOAL = "Goal, one of"
_MODEL = "If it is a MODEL"
_DATA = "Data"
_SPACE = "What may vary, beside max and min exit layer"
_WORK = "Work"


def register(app: typer.Typer) -> None:
    """Add ``fit`` to ``app``."""
    app.command("fit", epilog=_EXAMPLES)(fit)


def _goal(*names: str, text: str) -> Any:  # noqa: ANN401  (typer's own option type)
    return typer.Option(*names, help=text, rich_help_panel=_GOAL)


def _model(*names: str, text: str, **options: Any) -> Any:  # noqa: ANN401
    return typer.Option(*names, help=text, rich_help_panel=_MODEL, **options)


def _data(*names: str, text: str) -> Any:  # noqa: ANN401
    return typer.Option(*names, help=text, rich_help_panel=_DATA)


def _space(*names: str, text: str) -> Any:  # noqa: ANN401
    return typer.Option(*names, help=text, rich_help_panel=_SPACE)


def _work(*names: str, text: str, **options: Any) -> Any:  # noqa: ANN401
    return typer.Option(*names, help=text, rich_help_panel=_WORK, **options)


@reports_errors
def fit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|BUNDLE",
            help="a bundle's directory; or opt-125m, a hub id, a checkpoint's directory",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="schedule, .json")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="front as .png or .svg")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, no tables")] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="also vary each choice alone around the best")
    ] = False,
    target_speedup: Annotated[
        float | None, _goal("--target-speedup", text="least loss at this speed-up or more")
    ] = None,
    max_loss: Annotated[
        str | None, _goal("--max-loss", text="fastest up to 1.9 nats a token; +0.05: over full")
    ] = None,
    speedup_of: Annotated[
        Literal["steps", "call"],
        _goal("--speedup-of", text="steps after the prompt, or the whole call"),
    ] = "steps",
    *,
    data: Annotated[Path, _data("--data", text=".jsonl, .csv, .txt, or a dataset")],
    data_format: DataFormat = "auto",
    preset: DataPreset = None,
    prompt_column: PromptColumn = None,
    completion_column: CompletionColumn = None,
    prompt_template: PromptTemplate = None,
    completion_template: CompletionTemplate = None,
    passage_words: PassageWords = None,
    long_prompts: LongPrompts = "refuse",
    decay: Annotated[
        list[str] | None,
        _space("--decay", text="repeat: linear, power:power=2, … (four of them)"),
    ] = None,
    placement: Annotated[
        list[str] | None, _space("--placement", text="repeat: top, d3:tail=2, … (all)")
    ] = None,
    warmup: Annotated[list[int] | None, _space("--warmup", text="repeat (0, 1, 2, 3)")] = None,
    prompt: Annotated[
        list[str] | None,
        _space("--prompt", text="repeat: full, decay (full; both with --speedup-of call)"),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option("--horizon", min=1, help="(the data's median completion)")
    ] = None,
    examples: Annotated[int, _work("--examples", text="drawn from the data by --seed", min=1)] = 96,
    budget: Annotated[int, _work("--budget", text="schedules that are scored", min=1)] = 256,
    repetitions: Annotated[
        int, _work("--repetitions", text="of each timing; 0: trust bytes", min=0)
    ] = 7,
    seed: Annotated[int, _work("--seed", text="of examples and search", min=0)] = 0,
    device: Annotated[
        str | None, _work("--device", text="cpu, cuda or cuda:1 (cpu; TensorRT: cuda)")
    ] = None,
    threads: Annotated[int | None, _work("--threads", text="(all cores)", min=1)] = None,
    load_format: Annotated[
        Literal["auto", "safetensors", "bin", "dummy"] | None,
        _model("--load-format", text="dummy: random weights (auto)"),
    ] = None,
    fp16: Annotated[bool, _model("--fp16", text="the same as --dtype float16")] = False,
    dtype: Annotated[
        Literal["float32", "float16"] | None, _model("--dtype", text="to export in (float32)")
    ] = None,
    quantize: Annotated[
        Literal["none", "int8", "int8-block", "int4"] | None,
        _model("--quantize", text="the weights (none)"),
    ] = None,
    head_quantize: Annotated[
        Literal["none", "int8", "int8-block", "int4"] | None,
        _model("--head-quantize", text="the head's weights (as --quantize)"),
    ] = None,
    keep_bundle: Annotated[
        Path | None,
        _model("--keep-bundle", metavar="DIR", text="keep the bundle, with the chosen schedule"),
    ] = None,
) -> None:
    """Choose the exit schedule that reaches a goal on your data with the least loss of quality."""
    from ...engines.host.progress import ConsoleProgress
    from ..data.data import DataConfig
    from ..fitting.fit import fit as run
    from ..fitting.inputs import FitConfig
    from ..fitting.options import choose_goal, choose_source, choose_space
    from ..fitting.report import print_fit, report_document
    from ..fitting.search import SearchConfig

    config = FitConfig(
        source=choose_source(
            source,
            {
                "--load-format": load_format,
                "--fp16": fp16 or None,
                "--dtype": dtype,
                "--quantize": quantize,
                "--head-quantize": head_quantize,
                "--keep-bundle": keep_bundle,
            },
            output=output,
            force=force,
        ),
        data=DataConfig(
            path=data,
            format=data_format,
            preset=preset,
            prompt_column=prompt_column,
            completion_column=completion_column,
            prompt_template=prompt_template,
            completion_template=completion_template,
            passage_words=passage_words,
            long_prompts=long_prompts,
        ),
        goal=choose_goal(target_speedup, max_loss),
        speedup_of=speedup_of,
        space=choose_space(decay, placement, warmup, prompt, speedup_of),
        search=SearchConfig(budget=budget, seed=seed),
        num_examples=examples,
        horizon=horizon,
        repetitions=repetitions,
        sensitivity=sensitivity,
    )
    _check_files(output, plot, force=force)

    def open_generator(path: Path) -> Generator:
        from ...runtime.commands.options import open_for_command

        return open_for_command(path, device=device, threads=threads, max_batch_size=1)

    with ConsoleProgress() as progress:
        found = run(config, open_generator, progress)
    if output is not None:
        _write_schedule(output, found.chosen.schedule.to_document())
    if plot is not None:
        from ..fitting.plot import plot_fit

        plot_fit(found, plot)
    if as_json:
        print_json(report_document(found, _machine(device, threads)))
    else:
        print_fit(result_console(), found)


def _check_files(output: Path | None, plot: Path | None, *, force: bool) -> None:
    """Raise UsageError for files that can't be written, all of them at once."""
    from ...engines.errors import UsageError

    problems = []
    for name, path in (("--output", output), ("--plot", plot)):
        if path is None:
            continue
        if not path.parent.is_dir():
            problems.append(f"{name} {path}: {path.parent} is no directory; make it")
        if path.is_dir() or (path.exists() and not force):
            problems.append(f"{name} {path}: exists; --force replaces a file, or name another")
    if output is not None and output.suffix != ".json":
        problems.append(f"--output {output}: ends in {output.suffix!r}; allowed: .json")
    if problems:
        raise UsageError("fit", *problems)
    if plot is not None:
        from ..fitting.plot import check_picture

        check_picture(plot)


def _write_schedule(path: Path, document: dict[str, Any]) -> None:
    import json

    from ...engines.bundle import replace_file

    replace_file(path, (json.dumps(document, indent=2) + "\n").encode())
    stderr_console().print(f"wrote {path}", markup=False)


def _machine(device: str | None, threads: int | None) -> dict[str, Any]:
    """Where it ran, for the document; null: what the bundle's target runs on."""
    from ...engines.host.processor import available_cores

    return {"device": device, "threads": threads or available_cores()}
