"""``tune``: fine-tune a checkpoint so that it is ready to skip layers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING

from ...engines.host.events import Events
from ...runtime.schedule import ExitSchedule
from .allocation import kept_memory
from .config import TuneConfig
from .plan import TuningPlan, plan_tuning
from .report import DraftReport, TuningReport, make_report
from .work import FREE_OPTIONS, num_processes

if TYPE_CHECKING:
    from .model import SkipModel


def tune(config: TuneConfig, events: Events | None = None) -> TuningReport | None:
    """Tune as ``config`` says, publish the checkpoint with its schedule and return the report.

    The output is a Hugging Face directory that ``skipdec export`` takes, including its schedule;
    with ``draft_layer``, a directory with the draft layer alone. It appears atomically. Under
    ``torchrun`` every process calls this; the main one gets the report, the others None. An
    interrupted run continues with ``resume=True`` and ends with the same weights.

    Raises SkipDecError before any work if something is wrong (see ``plan_tuning``), and later if
    losses or weights are not finite.
    """
    TuneConfig.require(config)
    events = events or Events()
    plan = plan_tuning(config, events if is_main() else Events())
    if not is_main():
        _run(plan, Events())
        return None
    with plan.directories.place.locked(force=config.force):
        options = config.model_dump(mode="json", exclude=FREE_OPTIONS)
        checkpoint, layer = plan.start.checkpoint, plan.start_layer
        facts = {
            "began": plan.began.isoformat(),
            "data_digest": plan.data.digest,
            "start_digest": None if checkpoint is None else checkpoint.content,
            "layer_digest": None if layer is None else layer.digest,
            "processes": num_processes(),
        }
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


@kept_memory()
def _run(plan: TuningPlan, events: Events) -> TuningReport | None:
    from transformers import set_seed

    from .subjects import NewDraftLayer, WholeModel
    from .trainer import divergence, measuring_device, train

    seconds: dict[str, float] = {}  # by stage
    with _timed(seconds, "load"):
        events.stage("loading", 1)
        model = plan.start.load().to(measuring_device(plan.config)).eval()
        events.advance()
    set_seed(plan.config.seed)  # for adapters and dropout
    is_whole = not plan.config.draft_layer
    subject = (WholeModel if is_whole else NewDraftLayer)(plan, model, events)
    measures_losses = is_whole and is_main()  # a draft layer leaves the model's as they are
    with _timed(seconds, "validate"):
        at_start = _losses(subject.model, plan, events) if measures_losses else {}
        drafts = subject.acceptance() if is_main() else None
    with _timed(seconds, "train"):
        events.stage("tuning")
        trainer = subject.make_trainer()
        train(plan, trainer)
        subject.finish(trainer)
    if not is_main():
        return None
    with _timed(seconds, "publish"):
        events.stage("writing")
        directory = plan.directories.stage()
        subject.write(directory)
        losses = _losses(subject.model, plan, events) if measures_losses else {}
        if not all(map(isfinite, losses.values())):
            raise divergence(plan, f"held-out losses are {losses}")
        drafting = None
        if subject.drafts is not None:
            drafting = DraftReport(
                text=subject.drafts,
                layers=plan.layers_used,
                start=drafts,
                tuned=subject.acceptance(),
            )
        report = make_report(
            plan,
            trainer.state,
            parameters=subject.parameters,
            trained_parameters=subject.trained_parameters,
            losses=_named("start", at_start) | _named("tuned", losses),
            seconds=seconds,
            processes=trainer.args.world_size,
            device=str(trainer.args.device),
            drafts=drafting,
        )
        subject.describe(report, directory)
        plan.directories.publish()
    return report


def _losses(model: SkipModel, plan: TuningPlan, events: Events) -> dict[str, float]:
    """Return the losses of held-out examples, if any, ``at_schedule`` and ``at_full``."""
    from .batches import mean_loss

    if plan.validation is None:
        return {}
    examples, size = plan.validation.examples, plan.config.batch_size
    passes = 1 if plan.schedule.is_full else 2
    events.stage("held-out loss", passes * -(-len(examples) // size))
    measured = partial(mean_loss, model, examples, batch_size=size, events=events)
    at_schedule = at_full = measured(plan.schedule)
    if not plan.schedule.is_full:
        at_full = measured(ExitSchedule.full(plan.model.num_layers))
    return {"at_schedule": at_schedule, "at_full": at_full}


def _named(name: str, losses: dict[str, float]) -> dict[str, float]:
    return {f"{name}_{place}": loss for place, loss in losses.items()}


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Record in ``seconds`` how long a stage took."""
    begin = perf_counter()
    yield
    seconds[stage] = round(perf_counter() - begin, 3)
