"""``skipdec tune``: make a checkpoint ready to skip layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...engines.host.console import print_json, reports_errors, result_console
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
    from ..tuning.config import TuneConfig
    from ..tuning.report import TuningReport

_EXAMPLES = """
[bold]Examples[/bold]

skipdec tune opt-125m --data train.csv --preset e2e --schedule 2x -o opt-e2e-2x

skipdec tune ./opt-e2e --data train.jsonl --validation dev.jsonl --schedule 4x \
--distill 0.5 --curriculum 0.3 -o ./opt-e2e-4x

skipdec tune ./opt-e2e --data train.jsonl --schedule 4x --mixture 2x --mixture 3x \
--lora 16 -o ./opt-e2e-any

skipdec tune --from-scratch layers=12,width=256,heads=4 --vocab-size 1500 \
--data train.csv --preset e2e --schedule full --learning-rate 1e-3 --epochs 2 -o ./small

torchrun --no-python --nproc-per-node 4 skipdec tune opt-1.3b --data train.jsonl \
--schedule 2x --bf16 -o ./tuned

Then: skipdec export ./opt-e2e-4x --quantize int8 (it takes the schedule along)

A tuning that was interrupted goes on from its last save with --resume.

Exit codes: 0 tuned, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in round brackets are the defaults.
"""
_MODEL, _DATA, _LEARNING, _DEPTH, _RUN = "Model", "Data", "Learning", "Depth", "Running"


def register(app: typer.Typer) -> None:
    """Add ``tune`` to ``app``."""
    app.command("tune", epilog=_EXAMPLES)(tune)


def _option(panel: str, *names: str, text: str, **options: Any) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@reports_errors
def tune(
    data: Annotated[
        Path, _option(_DATA, "--data", metavar="FILE", text=".jsonl, .csv, .txt, or a dataset")
    ],
    schedule: Annotated[
        str, _option(_DEPTH, "--schedule", metavar="SPEC", text="full, 2x, linear:max=8,min=4,…")
    ],
    output: Annotated[
        Path, _option(_RUN, "-o", "--output", metavar="DIR", text="the tuned checkpoint")
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="opt-125m, …, a hub id, or a directory with config.json; not with --from-scratch",
        ),
    ] = None,
    from_scratch: Annotated[
        str | None,
        _option(
            _MODEL,
            "--from-scratch",
            metavar="SIZES",
            text="layers=12,width=256,heads=4[,ffn=,positions=,dropout=] or a config.json",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        _option(_MODEL, "--vocab-size", text="of the tokenizer that is trained then (2000)"),
    ] = None,
    separator: Annotated[
        str | None,
        _option(_MODEL, "--separator", text="token that this tokenizer ends prompts with (<sep>)"),
    ] = None,
    save_dtype: Annotated[
        Literal["float32", "float16", "bfloat16"],
        _option(_MODEL, "--save-dtype", text="of the weights that are written"),
    ] = "float32",
    data_format: DataFormat = "auto",
    preset: DataPreset = None,
    prompt_column: PromptColumn = None,
    completion_column: CompletionColumn = None,
    prompt_template: PromptTemplate = None,
    completion_template: CompletionTemplate = None,
    passage_words: PassageWords = None,
    long_prompts: LongPrompts = "refuse",
    validation: Annotated[
        Path | None,
        _option(
            _DATA, "--validation", metavar="FILE", text="held out: losses before and after tuning"
        ),
    ] = None,
    validation_examples: Annotated[
        int | None,
        _option(_DATA, "--validation-examples", text="the first ones of that file (512)"),
    ] = None,
    max_length: Annotated[
        int | None, _option(_DATA, "--max-length", text="prompt + completion (the model's)")
    ] = None,
    learn_prompt: Annotated[
        bool, _option(_DATA, "--learn-prompt", text="a loss on prompts too")
    ] = False,
    learning_rate: Annotated[
        float, _option(_LEARNING, "--learning-rate", text="fresh and small models: 1e-3 to 3e-3")
    ] = 1e-4,
    warmup_fraction: Annotated[
        float, _option(_LEARNING, "--warmup-fraction", text="of the steps, learning rate rises")
    ] = 0.05,
    decay: Annotated[
        Literal["linear", "cosine", "constant"],
        _option(_LEARNING, "--decay", text="of the learning rate afterwards"),
    ] = "linear",
    weight_decay: Annotated[float, _option(_LEARNING, "--weight-decay", text="of AdamW")] = 0.01,
    epochs: Annotated[
        float | None, _option(_LEARNING, "--epochs", text="passes over the data (1)")
    ] = None,
    max_steps: Annotated[
        int | None, _option(_LEARNING, "--max-steps", text="in place of --epochs")
    ] = None,
    batch_size: Annotated[
        int, _option(_LEARNING, "-b", "--batch-size", text="examples at once on each device")
    ] = 16,
    gradient_accumulation: Annotated[
        int, _option(_LEARNING, "--gradient-accumulation", text="batches a step")
    ] = 1,
    group_by_length: Annotated[
        bool,
        _option(
            _LEARNING,
            "--group-by-length/--shuffle",
            text="steps of texts of like length: faster, but texts come out shorter",
        ),
    ] = False,
    lora: Annotated[
        int | None, _option(_LEARNING, "--lora", metavar="RANK", text="adapters alone; needs peft")
    ] = None,
    lora_alpha: Annotated[
        float | None, _option(_LEARNING, "--lora-alpha", text="(twice the rank)")
    ] = None,
    seed: Annotated[int, _option(_LEARNING, "--seed", text="of data order and fresh weights")] = 0,
    distill: Annotated[
        float | None,
        _option(
            _DEPTH, "--distill", metavar="WEIGHT", text="of the divergence from full depth, 0 to 1"
        ),
    ] = None,
    temperature: Annotated[
        float | None, _option(_DEPTH, "--temperature", text="of --distill (1)")
    ] = None,
    curriculum: Annotated[
        float | None,
        _option(
            _DEPTH, "--curriculum", metavar="FRACTION", text="of the steps, depth shrinks from full"
        ),
    ] = None,
    mixture: Annotated[
        list[str] | None,
        _option(
            _DEPTH, "--mixture", metavar="SPEC", text="repeat: steps draw one, the target, or full"
        ),
    ] = None,
    bf16: Annotated[bool, _option(_RUN, "--bf16", text="mixed precision")] = False,
    gradient_checkpointing: Annotated[
        bool, _option(_RUN, "--gradient-checkpointing", text="less memory, more time")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu"], _option(_RUN, "--device", text="auto: CUDA where there is one")
    ] = "auto",
    logging_steps: Annotated[int, _option(_RUN, "--logging-steps", text="between losses")] = 10,
    save_steps: Annotated[
        int, _option(_RUN, "--save-steps", text="between saves that --resume can use")
    ] = 500,
    resume: Annotated[bool, _option(_RUN, "--resume", text="go on from the last save")] = False,
    force: Annotated[
        bool, _option(_RUN, "--force", text="replace a checkpoint that was tuned before")
    ] = False,
    quiet: Annotated[
        bool, _option(_RUN, "-q", "--quiet", text="on stderr only warnings and errors")
    ] = False,
    as_json: Annotated[bool, _option(_RUN, "--json", text="print the report as JSON")] = False,
) -> None:
    """Fine-tune an OPT with the schedule that it will run: each position at its own depth.

    Prompts run every layer, the loss is on completions. The output is a Hugging Face checkpoint
    with schedule.json, tuning_report.json and tuning_curves.png.
    """
    from ..tuning.config import adapters, check_combinations, distillation

    check_combinations(
        ("--vocab-size", vocab_size, "--from-scratch SIZES", from_scratch),
        ("--separator", separator, "--from-scratch SIZES", from_scratch),
        ("--validation-examples", validation_examples, "--validation FILE", validation),
        ("--lora-alpha", lora_alpha, "--lora RANK", lora),
        ("--temperature", temperature, "--distill WEIGHT", distill),
        steps=None if epochs is None else max_steps,
    )
    columns = {
        "format": data_format,
        "preset": preset,
        "prompt_column": prompt_column,
        "completion_column": completion_column,
        "prompt_template": prompt_template,
        "completion_template": completion_template,
        "passage_words": passage_words,
        "long_prompts": long_prompts,
    }
    values: dict[str, Any] = {
        "model": model,
        "from_scratch": from_scratch,
        "save_dtype": save_dtype,
        "data": {"path": data, **columns},
        "validation": None if validation is None else {"path": validation, **columns},
        "max_length": max_length,
        "learn_prompt": learn_prompt,
        "learning_rate": learning_rate,
        "warmup_fraction": warmup_fraction,
        "decay": decay,
        "weight_decay": weight_decay,
        "max_steps": max_steps,
        "batch_size": batch_size,
        "gradient_accumulation": gradient_accumulation,
        "group_by_length": group_by_length,
        "lora": adapters(lora, lora_alpha),
        "seed": seed,
        "distillation": distillation(distill, temperature),
        "curriculum": curriculum,
        "mixture": tuple(mixture or ()),
        "schedule": schedule,
        "bf16": bf16,
        "gradient_checkpointing": gradient_checkpointing,
        "device": device,
        "logging_steps": logging_steps,
        "save_steps": save_steps,
        "resume": resume,
        "force": force,
        "output": output,
    }
    defaulted = {
        "vocab_size": vocab_size,
        "separator": separator,
        "validation_examples": validation_examples,
        "epochs": epochs,
    }
    values |= {name: value for name, value in defaulted.items() if value is not None}
    report = _tune(values, quiet=quiet)
    if report is None:
        return
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _print_report(report)


def _tune(values: dict[str, Any], *, quiet: bool) -> TuningReport | None:
    from ...engines.host.extras import require_extra
    from ...engines.host.progress import ConsoleProgress
    from ..tuning.config import TuneConfig

    require_extra("calib", "skipdec tune")
    config = TuneConfig(**values)
    from transformers.utils import logging

    from ..tuning.tune import tune as run_tuning

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with ConsoleProgress(quiet=quiet, advice=lambda: _advice(config)) as progress:
        return run_tuning(config, progress)


def _advice(config: TuneConfig) -> str:
    """How to go on after Ctrl-C, which depends on what was saved."""
    from ..tuning.work import TuningDirectories

    if TuningDirectories(config.output.expanduser().absolute()).last_checkpoint() is None:
        return (
            f"nothing was saved yet: the first save comes after --save-steps {config.save_steps}, "
            "or the last step; run the command again to start anew"
        )
    return "run the command again with --resume to go on from the last save"


def _print_report(report: TuningReport) -> None:
    console = result_console()
    console.print(
        f"{report.output}: {report.steps} steps, {report.epochs:.2f} epochs, "
        f"{report.seconds['train']:.0f} s"
    )
    console.print(f"schedule {report.schedule_text}")
    if report.final_loss is not None:
        console.print(f"training loss {report.losses[0].loss:.3f} → {report.final_loss:.3f}")
    if (held_out := report.validation) is not None:
        console.print(
            f"held-out loss ({held_out.examples} examples): "
            f"{held_out.start_at_schedule:.3f} → {held_out.tuned_at_schedule:.3f} at the schedule, "
            f"{held_out.start_at_full:.3f} → {held_out.tuned_at_full:.3f} at full depth"
        )
    console.print(f"next: skipdec export {report.output}")
