"""``skipdec evaluate``: what each schedule costs in quality and gains in time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engines.host.console import print_json, reports_errors, stderr_console
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
    from ..evaluation.evaluate import Evaluation

_EXAMPLES = """
[bold]Examples[/bold]

skipdec evaluate opt-e2e --data dev.csv --preset e2e --schedule 2x --schedule 4x --lowercase

skipdec evaluate opt-e2e --data dev.csv --preset e2e --limit 200 -o results
  evaluation.json, evaluation.md with examples side by side, pareto.png

skipdec evaluate tuned=runs/a tuned=runs/b untuned=opt-e2e --data dev.jsonl --json
  two checkpoints averaged, and a third beside them

skipdec evaluate my-opt --data notes.csv --prompt-column title --completion-column summary
  --prompt-template "Title: {prompt}. Summary:" --completion-template " {completion}"

skipdec evaluate my-opt --data book.txt --passage-words 24+120 --score-only --by-position
  --schedule constant:max=6 --schedule constant:max=4
  perplexity of each passage's 120 last words, by position and depth

[bold]Figures[/bold]: BLEU (sacrebleu, all references of a prompt), ROUGE-L (rouge-score, best
reference), BERT-F with --bert-model, perplexity of the first reference at scheduled depth, nominal
and realised depth, measured speed-up over full depth, lengths, cut and repetitive texts.
Rows of the data with equal prompts belong together: several references of one prompt.

Values in round brackets are the defaults.
"""

_DATA, _RUNNING, _METRICS = "Data", "Running", "Metrics"


def register(app: typer.Typer) -> None:
    """Add ``evaluate`` to ``app``."""
    app.command("evaluate", epilog=_EXAMPLES)(evaluate)


def _option(panel: str, *names: str, text: str, **options: Any) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@reports_errors
def evaluate(
    bundles: Annotated[
        list[str], typer.Argument(metavar="[NAME=]BUNDLE…", help="one name: averaged too")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="report, JSON, picture")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace --output")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, no tables")] = False,
    *,
    data: Annotated[Path, _option(_DATA, "--data", text=".jsonl, .csv, .txt, or a dataset")],
    data_format: DataFormat = "auto",
    preset: DataPreset = None,
    prompt_column: PromptColumn = None,
    completion_column: CompletionColumn = None,
    prompt_template: PromptTemplate = None,
    completion_template: CompletionTemplate = None,
    passage_words: PassageWords = None,
    long_prompts: LongPrompts = "refuse",
    limit: Annotated[
        int | None, _option(_DATA, "--limit", text="first N distinct prompts (all)", min=1)
    ] = None,
    score_only: Annotated[
        bool, _option(_RUNNING, "--score-only", text="write no texts: perplexity alone, quick")
    ] = False,
    by_position: Annotated[
        bool,
        _option(_METRICS, "--by-position", text="perplexity and loss over full by token position"),
    ] = False,
    equal_lengths: Annotated[
        bool,
        _option(
            _RUNNING, "--equal-lengths", text="speed-ups over full depth writing as many tokens"
        ),
    ] = False,
    schedule: Annotated[
        list[str] | None,
        _option(
            _RUNNING, "--schedule", text="repeat for several; full always runs (the bundle's own)"
        ),
    ] = None,
    batch_size: Annotated[
        int, _option(_RUNNING, "--batch-size", text="prompts at once", min=1)
    ] = 16,
    max_tokens: Annotated[
        int | None,
        _option(_RUNNING, "--max-tokens", text="(half more than the longest reference)", min=1),
    ] = None,
    temperature: Annotated[
        float, _option(_RUNNING, "--temperature", text="0: greedy", min=0)
    ] = 0.0,
    seed: Annotated[int, _option(_RUNNING, "--seed", text="of sampling and intervals", min=0)] = 0,
    device: Annotated[
        str | None, _option(_RUNNING, "--device", text="cpu, cuda or cuda:1 (cpu; TensorRT: cuda)")
    ] = None,
    threads: Annotated[
        int | None, _option(_RUNNING, "--threads", text="(all cores)", min=1)
    ] = None,
    lowercase: Annotated[bool, _option(_METRICS, "--lowercase", text="BLEU ignores case")] = False,
    bert_model: Annotated[
        Path | None, _option(_METRICS, "--bert-model", text="directory of an encoder, for BERT-F")
    ] = None,
    resamples: Annotated[
        int, _option(_METRICS, "--resamples", text="of the bootstrap", min=1)
    ] = 1000,
    examples: Annotated[
        int, _option(_METRICS, "--examples", text="side by side in DIR", min=0)
    ] = 5,
) -> None:
    """Write texts at every schedule, compare them with references, and measure the time."""
    from ...engines.host.processor import available_cores
    from ...engines.host.progress import ConsoleProgress
    from ..data.data import DataConfig
    from ..evaluation.evaluate import evaluate as run
    from ..evaluation.inputs import BundleChoice, EvaluationConfig
    from ..evaluation.markdown import tables_markdown
    from ..evaluation.metrics import MetricOptions
    from ..evaluation.report import evaluation_place, report_document

    config = EvaluationConfig(
        bundles=BundleChoice.parse_all(bundles),
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
        schedules=tuple(schedule or ()),
        limit=limit,
        batch_size=batch_size,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        metrics=MetricOptions(lowercase=lowercase, bert_model=bert_model),
        resamples=resamples,
        num_shown=examples,
        score_only=score_only,
        equal_lengths=equal_lengths,
        by_position=by_position,
    )
    if output is not None:
        evaluation_place(output).check(force=force)

    def open_generator(path: Path) -> Generator:
        from ...runtime.commands.options import open_for_command

        return open_for_command(path, device=device, threads=threads, max_batch_size=batch_size)

    with ConsoleProgress() as progress:
        evaluation = run(config, open_generator, progress)
    document = report_document(evaluation, threads=threads or available_cores())
    if output is not None:
        _write(output, evaluation, document, force=force)
    if as_json:
        print_json(document)
    else:
        sys.stdout.write(tables_markdown(evaluation))


def _write(output: Path, evaluation: Evaluation, document: dict[str, Any], *, force: bool) -> None:
    from ..evaluation.report import pictures, write_evaluation

    names = write_evaluation(output, evaluation, document, force=force)
    console = stderr_console()
    console.print(f"wrote {', '.join(str(output / name) for name in names)}")
    if missing := [name for name in pictures(evaluation) if name not in names]:
        console.print(
            f"no {', '.join(missing)}: needs matplotlib, not installed here; run: "
            "pip install 'skipdec[plot]'",
            markup=False,
        )
