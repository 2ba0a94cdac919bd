"""``tune --draft-layer``: train a draft layer for a model that stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....engines.host.events import Events
from ....exporter.checkpoint.checkpoint import open_checkpoint
from ....exporter.checkpoint.draft_layer import DraftedModel
from ....exporter.config import CheckpointSource
from ..plan import TuningPlan
from ..report import Acceptance, DraftReport, TuningReport, make_report
from ..stages import Stages, announce_held_out
from .files import (
    DraftAcceptance,
    DraftLayerDocument,
    DraftTraining,
    write_draft_layer,
)

if TYPE_CHECKING:
    from ..model import SkipModel
    from .trainer import DraftLayer, DraftLayerTrainer


def train_draft_layer(plan: TuningPlan, events: Events, *, is_main: bool) -> TuningReport | None:
    """Train and publish the draft layer of ``plan``; return the report in the main process.

    The model's loss on held-out data is measured before and after, and does not change.
    """
    from transformers import set_seed

    from ..trainer import train
    from .trainer import DraftLayer, make_draft_trainer

    stages = Stages(events)
    with stages.timed("load"):
        model = plan.start.load()
    set_seed(plan.config.seed)  # for dropout
    layer = DraftLayer(model, len(plan.draft_layers))
    with stages.timed("validate"):
        losses = _loss("start", model, plan, events) if is_main else {}
        before = _measure(layer, plan) if is_main else None
    with stages.timed("train"):
        trainer = make_draft_trainer(plan, layer, events)
        train(plan, trainer)
        _convert(plan, trainer, layer)
    if not is_main:
        return None
    with stages.timed("publish"):
        losses |= _loss("tuned", model, plan, events)
        after = _measure(layer, plan)
        report = make_report(
            plan,
            trainer.state,
            parameters=model.num_parameters(),
            trained_parameters=sum(weight.numel() for weight in layer.parameters()),
            losses=losses,
            seconds=stages.seconds,
            processes=trainer.args.world_size,
            device=str(trainer.args.device),
            drafts=DraftReport(
                text=f"a layer behind layer {layer.behind - 1}",
                layers=plan.draft_layers,
                start=before,
                tuned=after,
            ),
        )
        _publish(plan, layer, report, after)
    return report


def _convert(plan: TuningPlan, trainer: DraftLayerTrainer, layer: DraftLayer) -> None:
    """Round the layer's weights to the written type, so that what is measured is what is written.

    Raises SkipDecError in every process if they are not finite then.
    """
    import torch

    from ..trainer import are_finite, require_finite

    dtype = getattr(torch, plan.config.save_dtype)
    layer.load_state_dict({name: each.to(dtype) for name, each in layer.state_dict().items()})
    require_finite(plan, are_finite(layer.parameters()), trainer.args.device)


def _loss(name: str, model: SkipModel, plan: TuningPlan, events: Events) -> dict[str, float]:
    """Return the loss at full depth, which is the schedule here, as a report has it."""
    from ..batches import mean_loss

    if plan.validation is None:
        return {}
    size = plan.config.batch_size
    examples = plan.validation.examples
    announce_held_out(events, len(examples), size, 1)
    loss = mean_loss(model, examples, plan.schedule, batch_size=size, events=events)
    return {f"{name}_at_schedule": loss, f"{name}_at_full": loss}


def _measure(layer: DraftLayer, plan: TuningPlan) -> Acceptance | None:
    from .acceptance import held_by_layer, measure_acceptance

    layer.eval()
    held = held_by_layer(layer.base, layer.layer, layer.behind)
    return measure_acceptance(layer.base, plan, held)


def _publish(
    plan: TuningPlan, layer: DraftLayer, report: TuningReport, acceptance: Acceptance | None
) -> None:
    """Write the files of the draft layer, and publish them atomically."""
    import torch

    assert plan.start.directory is not None
    config, dtype = plan.config, getattr(torch, plan.config.save_dtype)
    document = DraftLayerDocument(
        behind=layer.behind,
        model=DraftedModel.of(open_checkpoint(CheckpointSource(model=str(plan.start.directory)))),
        training=DraftTraining(
            steps=report.steps,
            examples=report.data.examples,
            learning_rate=config.learning_rate,
            seed=config.seed,
        ),
        acceptance=None
        if acceptance is None
        else DraftAcceptance(held_of_6=acceptance.held_of_6, first=acceptance.first),
    )
    weights = {
        name: tensor.detach().to("cpu", dtype) for name, tensor in layer.layer.state_dict().items()
    }
    write_draft_layer(plan.directories.stage(), weights, document)
    plan.directories.publish()
