"""``skipdec tune``: make a checkpoint ready to skip layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...engines.errors import counted
from ...engines.host.console import Part
from ...engines.host.installation import require_extra
from ...engines.host.options import AsJson, Quiet, from_options
from ..tuning.config import TuneConfig

if TYPE_CHECKING:
    from ..tuning.report import TuningReport

EXAMPLES = """
Examples:

\b
skipdec tune opt-125m --data train.csv --preset e2e --schedule 2x \\
    -o opt-e2e-2x

\b
skipdec tune ./opt-e2e --data train.jsonl --validation dev.jsonl \\
    --schedule 4x --distill 0.5 -o ./opt-e2e-4x

\b
skipdec tune ./opt-e2e --data train.jsonl --schedule 4x --mixture 2x \\
    --mixture 3x --lora 16 -o ./opt-e2e-any

\b
skipdec tune ./opt-e2e --data train.jsonl --validation dev.jsonl \\
    --draft-layer -o ./draft

\b
skipdec tune SmolLM2-135M-Instruct --data self:20000 --draft-layer \\
    -o ./draft
  without data: the model writes 20,000 chats (self: 5,000), kept in
  ./draft.self.jsonl

\b
skipdec tune ./opt-e2e --data train.jsonl --validation dev.jsonl \\
    --draft ends:3 -o ./drafts

\b
skipdec tune --from-scratch layers=12,width=256,heads=4 --vocab-size 1500 \\
    --data train.csv --preset e2e --schedule full --learning-rate 1e-3 \\
    --epochs 2 -o ./small

\b
torchrun --no-python --nproc-per-node 4 skipdec tune opt-1.3b \\
    --data train.jsonl --schedule 2x --bf16 -o ./tuned

\b
skipdec export ./opt-e2e-4x --quantize int8
  the next step: the bundle gets the same schedule

--resume continues an interrupted run from its last save.

Exit codes: 0 tuned, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


@from_options
def tune(config: TuneConfig, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Fine-tune a model with the schedule that it will run, each position at its own depth.

    Prompts run every layer; the loss covers completions only. The output is a Hugging Face
    checkpoint with schedule.json, tuning_report.json and tuning_curves.png. With --draft-layer the
    model is not changed, and the output is a draft layer for skipdec export --draft-layer. With
    --data self the model itself writes 5,000 texts to tune on, with --data self:N it writes N.
    """
    require_extra("calib", "skipdec tune")
    from transformers.utils import logging

    from ...engines.host.progress import run_job
    from ..tuning.tuning import is_main
    from ..tuning.tuning import tune as run_tuning

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    advice = partial(_advice, config) if is_main() else None  # only one of torchrun's processes
    run_job(
        partial(run_tuning, config),
        _parts,
        done=lambda report: f"{report.output} is published",
        as_json=as_json,
        quiet=quiet,
        advice=advice,
    )


def _advice(config: TuneConfig) -> str:
    """Return advice on continuing after Ctrl-C, which depends on what was saved."""
    from ..data.own_texts import KEPT
    from ..tuning.work import directories_of

    if directories_of(config).last_save() is None:
        if config.data.own_texts is not None:
            return KEPT
        return (
            "nothing was saved yet: no step had ended, or it was stopped twice; run the command "
            "again, with or without --resume"
        )
    return "run the command again with --resume to continue from the last save"


def _parts(report: TuningReport) -> Iterator[Part]:
    yield (
        f"{report.output}: {counted(report.steps, 'step')}, {report.epochs:.2f} epochs, "
        f"{report.seconds['train']:.0f} s"
    )
    yield f"schedule {report.schedule_text}"
    if report.final_loss is not None:
        yield f"training loss {report.losses[0].loss:.3f} → {report.final_loss:.3f}"
    if (held_out := report.validation) is not None:
        depths = (
            f"{before:.3f} → {after:.3f} {depth}"
            for depth, before, after in report.held_out_losses()
        )
        yield f"held-out loss ({counted(held_out.examples, 'example')}): {', '.join(depths)}"
    if (drafts := report.drafts) is not None and drafts.start and drafts.tuned:
        yield (
            f"drafts that hold of 6 ({drafts.text}, {counted(drafts.tuned.texts, 'text')}): "
            f"{drafts.start.held_of_6:.2f} → {drafts.tuned.held_of_6:.2f}, "
            f"the first {drafts.start.first:.0%} → {drafts.tuned.first:.0%}"
        )
    yield f"next: {_next_step(report)}"


def _next_step(report: TuningReport) -> str:
    """Return the command to export the result, and the drafts to run with the bundle.

    Drafts require engines with bitwise reproducible results, which those of a plain export are not.
    """
    if report.drafts is None:
        return f"skipdec export {report.output}"
    model, draft = f"{report.output}", report.drafts.text
    if report.config["draft_layer"]:
        model, draft = f"{report.config['model']} --draft-layer {report.output}", "trained"
    return f"skipdec export {model} --quantize int8, then run the bundle with --draft {draft}"
