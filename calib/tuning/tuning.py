"""``tune``: fine-tune a checkpoint so that it is ready to skip layers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.bundle.place import CARD_NAME, SCHEDULE_NAME, share_weights
from ...engines.documents import naming_full_disk, sealed_text, write_file
from ...engines.host.events import Events
from ...engines.host.installation import missing_modules
from ...exporter.checkpoint.template import template_files
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.bundle import schedule_file
from .config import TuneConfig
from .drafting.training import train_draft_layer
from .family import load_skip_model
from .plan import TuningPlan, plan_tuning
from .report import Acceptance, DraftReport, TuningReport, make_report, plot_curves, tuned_card
from .stages import Stages, announce_held_out
from .work import CURVES_NAME, FREE_OPTIONS, REPORT_NAME, num_processes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .model import SkipModel


def tune(config: TuneConfig, events: Events | None = None) -> TuningReport | None:
    """Tune as ``config`` says, publish the checkpoint with its schedule and return the report.

    The output is a Hugging Face directory that ``skipdec export`` takes, including its schedule;
    with ``draft_layer``, a directory with the draft layer alone. It appears atomically. Under
    ``torchrun`` every process calls this; only the main one gets the report, the others None. An
    interrupted run continues with ``resume=True`` and ends with the same weights.

    Raises SkipDecError before any work if something is wrong, see ``plan_tuning``; later, if losses
    or weights are not finite.
    """
    events = events or Events()
    plan = plan_tuning(config, events if is_main() else Events())
    if not is_main():
        _run(plan, Events())
        return None
    with plan.directories.place.locked(force=config.force):
        options = config.model_dump(mode="json", exclude=FREE_OPTIONS)
        facts = {"data_digest": plan.data.digest, "processes": num_processes()}
        plan.directories.begin({**options, **facts}, resumed=plan.resumed)
        try:
            events.planned(plan.summary, plan.warnings)
            return _run(plan, events)
        except BaseException:
            plan.directories.abandon()
            raise


def is_main() -> bool:
    """Return True in torchrun's first process, or in the only one."""
    return os.environ.get("RANK", "0") == "0"


def _run(plan: TuningPlan, events: Events) -> TuningReport | None:
    import torch
    from transformers import set_seed

    if plan.config.draft_layer is not None:
        return train_draft_layer(plan, events, is_main=is_main())
    from .trainer import divergence, make_trainer, train, tuned_weights

    stages = Stages(events)
    with stages.timed("load"):
        model = plan.start.load()
    set_seed(plan.config.seed)  # for adapters and dropout
    with stages.timed("validate"):
        before = _measure("start", model, plan, events) if is_main() else _HeldOut()
    with stages.timed("train"):
        trainer = make_trainer(plan, model, events)
        train(plan, trainer)
        tuned = tuned_weights(plan, trainer, getattr(torch, plan.config.save_dtype))
    if tuned is None:
        return None
    plain, trained = tuned
    with stages.timed("publish"):
        directory = plan.directories.stage()
        _write_checkpoint(plain, plan, directory)
        after = _HeldOut()
        if plan.validation is not None:
            tuned_model = load_skip_model(directory, plan.model.family)
            after = _measure("tuned", tuned_model, plan, events)
            if not all(map(isfinite, after.losses.values())):
                raise divergence(plan, f"held-out losses are {after.losses}")
        report = make_report(
            plan,
            trainer.state,
            parameters=plain.num_parameters(),
            trained_parameters=trained,
            losses=before.losses | after.losses,
            seconds=stages.seconds,
            processes=trainer.args.world_size,
            device=str(trainer.args.device),
            drafts=_draft_report(plan, before, after),
        )
        _describe(report, plan, directory)
        plan.directories.publish()
    return report


@dataclass(frozen=True)
class _HeldOut:
    """Losses on held-out examples, by their names in a report, and how many drafts hold.

    Empty without held-out examples; ``drafts`` is None if no drafts are tuned.
    """

    losses: dict[str, float] = field(default_factory=dict)
    drafts: Acceptance | None = None


def _measure(name: str, model: SkipModel, plan: TuningPlan, events: Events) -> _HeldOut:
    """Measure ``model`` on the held-out examples, if any; losses are named ``NAME_at_full``, …."""
    from .batches import mean_loss
    from .drafting.acceptance import held_by_layers, measure_acceptance

    if plan.validation is None:
        return _HeldOut()
    examples, size = plan.validation.examples, plan.config.batch_size
    announce_held_out(events, len(examples), size, 2 if plan.schedule.is_reduced else 1)
    measured = partial(mean_loss, model, examples, batch_size=size, events=events)
    at_schedule = at_full = measured(plan.schedule)
    if plan.schedule.is_reduced:
        full = ExitSchedule.full(plan.model.num_layers)
        at_full = measured(full)
    losses = {f"{name}_at_schedule": at_schedule, f"{name}_at_full": at_full}
    if plan.config.draft is None:
        return _HeldOut(losses)
    held = held_by_layers(model, plan.draft_layers)
    return _HeldOut(losses, measure_acceptance(model, plan, held))


def _draft_report(plan: TuningPlan, before: _HeldOut, after: _HeldOut) -> DraftReport | None:
    """Return the drafts that were tuned; None if there are none."""
    if plan.config.draft is None:
        return None
    return DraftReport(
        text=plan.config.draft.layers,
        layers=plan.draft_layers,
        start=before.drafts,
        tuned=after.drafts,
    )


def _describe(report: TuningReport, plan: TuningPlan, directory: Path) -> None:
    """Write the report, the model card and, if matplotlib is installed, the curves."""
    write_file(directory / REPORT_NAME, report.model_dump_json(indent=2) + "\n")
    write_file(directory / CARD_NAME, tuned_card(plan, report))
    if not missing_modules("plot"):
        plot_curves(report, directory / CURVES_NAME)


def _write_checkpoint(model: PreTrainedModel, plan: TuningPlan, directory: Path) -> None:
    """Write weights, config, tokenizer, template and schedule for ``skipdec export``."""
    from safetensors import SafetensorError

    with naming_full_disk(directory, SafetensorError):
        model.save_pretrained(directory)
    share_weights(directory)
    for name, content in (plan.start.files | template_files(plan.data.template.text)).items():
        write_file(directory / name, content)
    write_file(directory / SCHEDULE_NAME, sealed_text(schedule_file(plan.schedule)))
