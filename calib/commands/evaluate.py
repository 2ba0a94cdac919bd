"""``skipdec evaluate``: measure what each schedule costs in quality and gains in time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engines.errors import SkipDecError, UsageError
from ...engines.host.events import Events
from ...engines.host.options import AsJson, Quiet, from_options
from ...engines.host.processor import available_cores
from ...runtime.commands.options import EngineChoice, opener
from ..evaluation.config import EvaluationConfig

if TYPE_CHECKING:
    from ..evaluation.evaluation import Evaluation

EXAMPLES = """
Examples:

\b
skipdec evaluate opt-e2e --data dev.csv --preset e2e --schedule 2x \\
    --schedule 4x --lowercase

\b
skipdec evaluate opt-e2e --data dev.csv --preset e2e --limit 200 -o results
  evaluation.json, evaluation.md with examples side by side, pareto.png

\b
skipdec evaluate opt-e2e --data dev.csv --preset e2e --batch-size 1 \\
    --draft own --draft own+ends:3
  the same texts with drafts: are they equal, how many hold, and the gain

\b
skipdec evaluate tuned=runs/a tuned=runs/b untuned=opt-e2e \\
    --data dev.jsonl --json
  averages two checkpoints and compares them with a third

\b
skipdec evaluate my-opt --data book.txt --score-only --by-position \\
    --schedule constant:max=6 --schedule constant:max=4
  perplexity of the last 120 words of each passage, by position and depth

Figures: BLEU (sacrebleu, all references of a prompt), ROUGE-L (rouge-score, best
reference), BERT-F with --bert-model, perplexity of the first reference at scheduled depth, nominal
and actual depth, measured speed-up over full depth, lengths, cut and repetitive texts.
Rows with equal prompts are grouped: they are several references of one prompt.
"""


@from_options
def evaluate(
    config: EvaluationConfig,
    engines: EngineChoice,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="report, JSON, picture")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace --output")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Generate texts at every schedule, compare them with references, and measure the time."""
    from ...engines.host.progress import run_job
    from ..evaluation.evaluation import evaluate as run
    from ..evaluation.markdown import tables
    from ..evaluation.report import evaluation_place, report_document, write_evaluation

    if output is not None:
        reads = [config.data.path, config.metrics.bert_model, *(one.path for one in config.bundles)]
        evaluation_place(output).check(force=force, reads=reads)
    elif force:
        raise UsageError("evaluate", "--force needs --output")
    open_generator = opener(engines, max_batch_size=config.batch_size)
    document = partial(report_document, threads=engines.threads or available_cores())

    def write(evaluation: Evaluation, events: Events) -> None:
        if output is not None:
            write_evaluation(output, evaluation, document(evaluation), force=force, events=events)

    evaluation = run_job(
        partial(run, config, open_generator),
        tables,
        write=write,
        document=document,
        done=lambda _: "the evaluation is done" if output is None else f"{output} is written",
        as_json=as_json,
        quiet=quiet,
    )
    if evaluation is not None:
        require_equal_texts(evaluation)


def require_equal_texts(evaluation: Evaluation) -> None:
    """Raise SkipDecError, after all results, if drafts changed a text that they must not change."""
    exact = [row.run for row in evaluation.changed_by_drafts if row.run.draft.exact]
    if exact:
        raise SkipDecError(
            "draft",
            *(
                f"{run.draft} changed {run.num_texts - run.num_equal} of {run.num_texts} texts, "
                "which it must not; report this"
                for run in exact
            ),
        )
