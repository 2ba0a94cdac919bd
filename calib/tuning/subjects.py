"""The subject of a tuning: a whole model, or a draft layer for a frozen model."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ...engines.bundle.place import CARD_NAME, SCHEDULE_NAME
from ...engines.documents import naming_failed_write, write_file
from ...engines.host.events import Events
from ...engines.host.installation import missing_modules
from ...exporter.checkpoint.draft_layer import (
    FACTS_NAME,
    TENSORS_NAME,
    DraftedModel,
    DraftLayerFacts,
)
from ...exporter.checkpoint.formats import share_weights
from ...exporter.checkpoint.template import template_files
from ...runtime.schedule.text import document_text
from .drafting.acceptance import (
    Texts,
    greedy_texts,
    held_by_draft_layer,
    held_by_layers,
    measure_acceptance,
)
from .drafting.layer import DraftLayer
from .drafting.trainer import DraftLayerTrainer, fit_entry, kept_tokens
from .family import load_skip_model
from .plan import TuningPlan
from .report import Acceptance, TuningReport, plot_curves, tuned_card
from .trainer import (
    OrderedTrainer,
    are_finite,
    gathered_weights,
    make_trainer,
    measuring_device,
    require_finite,
    trainer_keywords,
)
from .work import CURVES_NAME, REPORT_NAME

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .model import SkipModel


class WholeModel:
    """A model whose weights, or adapters to be merged into them, are trained.

    ``model`` has the start weights and, after ``write``, the written ones.
    """

    def __init__(self, plan: TuningPlan, model: SkipModel, events: Events) -> None:
        self._plan, self.model, self._events = plan, model, events
        self._plain: PreTrainedModel | None = None
        self.parameters = self.trained_parameters = 0
        self.drafts = None if plan.config.draft is None else plan.config.draft.layers

    def make_trainer(self) -> OrderedTrainer:
        """Return the Trainer of the model."""
        return make_trainer(self._plan, self.model, self._events)

    def finish(self, trainer: OrderedTrainer) -> None:
        """Gather the weights in the main process in the type in which they are written.

        Raises SkipDecError in every process if they are not finite in that type.
        """
        self._plain = gathered_weights(self._plan, trainer)
        if self._plain is not None:
            weights = trainer.model.parameters()
            self.parameters = self._plain.num_parameters()
            self.trained_parameters = sum(one.numel() for one in weights if one.requires_grad)
        is_finite = self._plain is None or are_finite(self._plain.parameters())
        require_finite(self._plan, is_finite, trainer.args.device)

    def acceptance(self) -> Acceptance | None:
        """Return how many drafts hold on held-out prompts, if any; None if none are tuned."""
        if self.drafts is None:
            return None
        texts = greedy_texts(self.model, self._plan, self._events)
        return measure_acceptance(
            self.model, texts, held_by_layers(self.model, self._plan.layers_used)
        )

    def write(self, directory: Path) -> None:
        """Write weights, config, tokenizer, template and schedule for ``skipdec export``."""
        assert self._plain is not None
        plan = self._plan
        with naming_failed_write(directory, SafetensorError):
            self._plain.save_pretrained(directory)
        share_weights(directory)
        for name, content in (plan.start.files | template_files(plan.data.template.text)).items():
            write_file(directory / name, content)
        write_file(directory / SCHEDULE_NAME, document_text(plan.schedule))
        if plan.validation is not None:
            tuned = load_skip_model(directory, plan.model.family)
            self.model = tuned.to(measuring_device(plan.config))

    def describe(self, report: TuningReport, directory: Path) -> None:
        """Write the report, the model card and, if matplotlib is installed, the curves."""
        write_file(directory / REPORT_NAME, report.model_dump_json(indent=2) + "\n")
        write_file(directory / CARD_NAME, tuned_card(self._plan, report))
        if not missing_modules("plot"):
            plot_curves(report, directory / CURVES_NAME)


class NewDraftLayer:
    """A draft layer that reads states of ``model``, which stays unchanged."""

    def __init__(self, plan: TuningPlan, model: SkipModel, events: Events) -> None:
        self._plan, self.model, self._events = plan, model, events
        examples, start = plan.data.examples, plan.start_layer
        if start is None:
            self._layer = DraftLayer(model, kept_tokens(examples, plan.model.vocab_size))
            fit_entry(self._layer, examples, plan.config.batch_size, events)
        else:
            self._layer = DraftLayer(model, start.token_ids)
            self._layer.load(load_file(start.path))
        self.parameters = model.num_parameters()
        self.trained_parameters = sum(weight.numel() for weight in self._layer.parameters())
        self.drafts = "a draft layer"

    def make_trainer(self) -> OrderedTrainer:
        """Return the Trainer of the layer."""
        return DraftLayerTrainer(**trainer_keywords(self._plan, self._events), model=self._layer)

    def finish(self, trainer: OrderedTrainer) -> None:
        """Round the weights to the written type, so that measurements apply to what is written.

        Raises SkipDecError in every process if they are not finite in that type.
        """
        state = self._layer.state_dict()
        self._layer.load_state_dict({name: each.to(self._dtype) for name, each in state.items()})
        require_finite(self._plan, are_finite(self._layer.parameters()), trainer.args.device)

    @cached_property
    def _texts(self) -> Texts:
        """What the frozen model writes for held-out prompts."""
        return greedy_texts(self.model, self._plan, self._events)

    def acceptance(self) -> Acceptance | None:
        """Return how many drafts hold on held-out prompts, if any."""
        return measure_acceptance(self.model, self._texts, held_by_draft_layer(self._layer.eval()))

    def write(self, directory: Path) -> None:
        """Write the weights; those of layer and head have their names in the model."""
        weights = {
            name: tensor.detach().to("cpu", self._dtype, copy=True)  # norms share their memory
            for name, tensor in self._layer.tensors().items()
        }
        with naming_failed_write(directory, SafetensorError):
            # As bytes, because safetensors would create a file that only its owner can read.
            write_file(directory / TENSORS_NAME, save(weights))

    def describe(self, report: TuningReport, directory: Path) -> None:
        """Write a description of the layer: its model, its training, and how many drafts hold."""
        checkpoint, config = self._plan.start.checkpoint, self._plan.config
        assert checkpoint is not None
        assert report.drafts is not None
        tuned = report.drafts.tuned
        facts = DraftLayerFacts(
            reads=self._layer.reads,
            token_ids=tuple(self._layer.token_ids.tolist()),
            model=DraftedModel.of(checkpoint.model, checkpoint.content),
            training={
                "steps": report.steps,
                "examples": report.data.examples,
                "learning_rate": config.learning_rate,
                "seed": config.seed,
            },
            acceptance={} if tuned is None else tuned.model_dump(),
        )
        text = facts.model_dump_json(indent=2, exclude_none=True)
        write_file(directory / FACTS_NAME, text + "\n")

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self._plan.config.save_dtype)
        return dtype
