"""The report of a tuning, as JSON, curves and a model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...engines.checking import FrozenModel
from ...engines.errors import counted
from ...engines.host.console import markdown_table
from ...engines.host.installation import require_extra
from ...engines.manifest import ModelSpec
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..pictures import Chart, Series, plot
from .plan import TuningPlan, depth_share

if TYPE_CHECKING:
    from transformers import TrainerState

_FEW_POINTS = 12
_PACKAGES = ("skipdec", "torch", "transformers", "accelerate", "tokenizers")


class DataReport(FrozenModel):
    """Sizes of the examples, in tokens."""

    examples: int
    truncated: int = Field(description="completions cut at the maximum length")
    median_prompt: int
    median_completion: int
    longest: int = Field(description="prompt and completion together")
    digest: str = Field(description="SHA-256 of all token ids")


class ScheduleReport(FrozenModel):
    """A schedule and the number of steps that ran it."""

    text: str
    steps: int
    depth_share: float = Field(description="layers times positions, relative to full depth")


class LossReport(FrozenModel):
    """Mean loss since the previous entry, in nats per token, distillation included."""

    step: int
    loss: float
    learning_rate: float


class ValidationReport(FrozenModel):
    """Cross-entropy of held-out completions, in nats per token, at the schedule and full depth."""

    examples: int
    start_at_schedule: float
    start_at_full: float
    tuned_at_schedule: float
    tuned_at_full: float


class Acceptance(FrozenModel):
    """How many drafts held on greedy texts that the model writes for held-out prompts."""

    texts: int
    spans: int = Field(description="one for each token that has at least 6 more after it")
    held_of_6: float = Field(description="mean number of 6 drafts that hold")
    first: float = Field(description="share of spans whose first draft holds")


class DraftReport(FrozenModel):
    """The drafts that were trained; ``start`` and ``tuned`` are null without held-out texts."""

    text: str
    layers: tuple[int, ...] = Field(
        description="the model's layers that a draft runs, or how many ran where one reads states"
    )
    start: Acceptance | None
    tuned: Acceptance | None


class TuningReport(FrozenModel):
    """Report of a finished tuning. Times are in seconds; all else is the same on every machine."""

    output: Path
    config: dict[str, Any]
    model: dict[str, Any]
    parameters: int
    trained_parameters: int = Field(description="fewer than all with LoRA or a draft layer")
    schedule: dict[str, Any]
    schedule_text: str
    horizon_is_median: bool = Field(description="False: the schedule has its own horizon")
    data: DataReport
    steps: int
    epochs: float
    schedules: tuple[ScheduleReport, ...]
    losses: tuple[LossReport, ...]
    validation: ValidationReport | None
    drafts: DraftReport | None = None
    seconds: dict[str, float]
    processes: int
    device: str
    versions: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def final_loss(self) -> float | None:
        """The last logged mean; None if the run was too short for one."""
        return self.losses[-1].loss if self.losses else None

    def held_out_losses(self) -> list[tuple[str, float, float]]:
        """Return where each held-out loss was measured, and its values before and after.

        ``at the schedule`` is omitted if that is full depth. The list is empty without held-out
        examples.
        """
        losses = self.validation
        if losses is None:
            return []
        at_full = ("at full depth", losses.start_at_full, losses.tuned_at_full)
        if ExitSchedule.from_document(self.schedule).is_full:
            return [at_full]
        return [("at the schedule", losses.start_at_schedule, losses.tuned_at_schedule), at_full]


def make_report(
    plan: TuningPlan,
    state: TrainerState,
    *,
    parameters: int,
    trained_parameters: int,
    losses: Mapping[str, float],
    seconds: Mapping[str, float],
    processes: int,
    device: str,
    drafts: DraftReport | None,
) -> TuningReport:
    """Combine the options of ``plan``, Trainer's state, and ``losses`` on held-out examples."""
    examples, num_steps = plan.data.examples, state.global_step
    steps = Counter(map(plan.schedules, range(num_steps)))
    validation = None
    if losses and plan.validation is not None:
        validation = ValidationReport(examples=len(plan.validation.examples), **losses)
    return TuningReport(
        output=plan.directories.output,
        config=plan.config.model_dump(mode="json"),
        model=plan.model.model_dump(mode="json"),
        parameters=parameters,
        trained_parameters=trained_parameters,
        schedule=plan.schedule.to_document(),
        schedule_text=format_schedule(plan.schedule),
        horizon_is_median=plan.horizon_is_median,
        data=DataReport(
            examples=len(examples),
            truncated=plan.data.num_truncated,
            median_prompt=median_low(len(example.prompt_token_ids) for example in examples),
            median_completion=plan.data.median_completion,
            longest=max(map(len, examples)),
            digest=plan.data.digest,
        ),
        steps=num_steps,
        epochs=round(state.epoch or 0.0, 4),
        schedules=tuple(  # in the order in which steps first ran them
            ScheduleReport(
                text=format_schedule(schedule),
                steps=count,
                depth_share=round(depth_share(schedule, examples), 4),
            )
            for schedule, count in steps.items()
        ),
        losses=tuple(
            LossReport(step=entry["step"], loss=entry["loss"], learning_rate=entry["learning_rate"])
            for entry in state.log_history
            if "loss" in entry
        ),
        validation=validation,
        drafts=drafts,
        seconds=dict(seconds),
        processes=processes,
        device=device,
        versions={name: version(name) for name in _PACKAGES},
        warnings=plan.warnings,
    )


def plot_curves(report: TuningReport, path: Path) -> None:
    """Plot the losses over the steps to ``path``, a PNG.

    Raises MissingExtraError if matplotlib is not installed.
    """
    require_extra("plot", "curves of a tuning")
    steps = [entry.step for entry in report.losses]
    style = "o-" if len(steps) <= _FEW_POINTS else "-"  # a line with one point is invisible
    series = [Series("training", steps, [entry.loss for entry in report.losses], style)]
    if (held_out := report.validation) is not None:
        points = [held_out.start_at_schedule, held_out.tuned_at_schedule]
        series.append(Series("held out, at the schedule", [0, report.steps], points, "o"))
    title = f"{report.schedule_text}, {counted(report.data.examples, 'example')}"
    plot(path, Chart(series, "step", "loss, nats per token", title))


def tuned_card(plan: TuningPlan, report: TuningReport) -> bytes:
    """Return README.md of the checkpoint of ``plan``, with the losses of ``report``."""
    data = report.data
    facts = {
        "model": f"{structure(plan.model)}; {report.parameters:,} parameters",
        "tuned from": code(plan.model.name) if plan.config.model else "random weights",
        "exit schedule": code(report.schedule_text),
        "tuned at": ", ".join(
            f"{code(entry.text)} ({counted(entry.steps, 'step')})" for entry in report.schedules
        ),
        "prompt template": "the chat template"
        if plan.data.template.is_unused
        else code(plan.data.template.text),
        "data": f"{counted(data.examples, 'example')}, median {data.median_prompt} + "
        f"{data.median_completion} tokens",
        "training": f"{counted(report.steps, 'step')}, {report.epochs:g} epochs, "
        f"seed {plan.config.seed}",
        "made with": ", ".join(f"{name} {number}" for name, number in report.versions.items()),
    }
    purpose, about = _purpose(plan, report)
    sections = [about, facts_table(facts.items())]
    if (losses := report.validation) is not None:
        rows = (
            (depth, f"{before:.3f}", f"{after:.3f}")
            for depth, before, after in report.held_out_losses()
        )
        table = markdown_table(("", "before", "after"), rows)
        heading = f"Loss of {losses.examples:,} held-out completions, nats per token:"
        sections.append(f"{heading}\n\n{table}")
    commands = ["skipdec export OWNER/NAME --quantize int8 -o bundle"]
    if report.drafts is not None:
        sections.append(_about_drafts(report.drafts))
        commands.append(f"skipdec generate bundle --draft {report.drafts.text} -p TEXT")
    sections.append("\n".join(("```sh", *commands, "```")))
    return model_card(plan.model, f"{plan.config.output.name}, {purpose}", sections)


def _purpose(plan: TuningPlan, report: TuningReport) -> tuple[str, str]:
    """Return the purpose of the tuning: the end of a title, and a sentence or two."""
    if report.drafts is not None:
        return (
            "tuned to draft for itself",
            "A checkpoint for transformers that was tuned at full depth together with drafts of a "
            "few of its layers: exported by skipdec, these layers propose tokens that one pass of "
            "all layers checks, so that full depth writes the same text sooner.",
        )
    if all(plan.schedules(step).is_full for step in range(report.steps)):
        return (
            "tuned at full depth",
            "A checkpoint for transformers that was tuned at full depth: none of its layers was "
            "tuned to be skipped.",
        )
    return (
        "tuned to skip layers",
        "A checkpoint for transformers whose layers were tuned to be skipped: exported by skipdec, "
        "each generated token runs only those that its exit schedule names (SkipDecode, "
        "arXiv:2307.02628). At full depth it runs in transformers like any other.",
    )


def _about_drafts(drafts: DraftReport) -> str:
    text = f"Full depth was tuned together with drafts that run layers {code(drafts.text)}"
    if drafts.start is None or drafts.tuned is None:
        return f"{text}."
    return (
        f"{text}: of 6 drafts {drafts.tuned.held_of_6:.2f} hold on "
        f"{counted(drafts.tuned.texts, 'text')} (before: {drafts.start.held_of_6:.2f})."
    )


_LICENCE = (
    "<!-- Choose a licence: add `license: …` to the block above. Tuned weights are subject to the "
    "licences of their base model and of their data. -->"
)


def model_card(model: ModelSpec, title: str, sections: Iterable[str]) -> bytes:
    """Return the README.md of ``model``, which is deterministic because it has no date.

    The metadata block has the library, the task, tags and, if the model has a hub id, its base. It
    has no licence, which only the owner can choose. ``sections`` are Markdown.
    """
    from huggingface_hub.repocard_data import ModelCardData

    data = ModelCardData(
        library_name="skipdec",
        pipeline_tag="text-generation",
        base_model=model.name if "/" in model.name else None,
        tags=["skipdec", "skipdecode", model.family],
    )
    parts = (f"---\n{data.to_yaml()}\n---", f"# {title}", _LICENCE, *sections)
    return ("\n\n".join(parts) + "\n").encode()


def facts_table(facts: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown table of names and values, without a heading."""
    return markdown_table(("", ""), ((name, value.replace("|", "\\|")) for name, value in facts))


def code(text: str) -> str:
    r"""Return user text as inline code on one line, with line breaks as ``\n``.

    >>> code("{prompt}\nTL;DR:")
    '`{prompt}\\nTL;DR:`'
    """
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    fence = "``" if "`" in escaped else "`"
    padding = " " if "`" in escaped else ""
    return f"{fence}{padding}{escaped}{padding}{fence}"


def structure(model: ModelSpec) -> str:
    """Describe the model in one line: ``OPT, 12 layers of width 768, 12 heads, …``."""
    return (
        f"{model.family.upper()}, {model.num_layers} layers of width {model.hidden_size}, "
        f"{model.num_heads} heads, {model.vocab_size:,} tokens, {model.max_seq_len:,} positions"
    )
