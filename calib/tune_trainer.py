"""transformers' Trainer with a schedule for each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Trainer

from ..runtime.schedule import ExitSchedule
from .skip_model import IGNORED_LABEL, SkipOPTForCausalLM
from .tune_batches import POOLED_STEPS, ExampleDataset, LikeLengths
from .tune_config import DistillationConfig
from .tune_schedules import StepSchedules


class SkipTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Trains at the schedule of the step; evaluates at the target.

    ``teacher`` runs at full depth; it is moved to the device of the model. ``groups_lengths``:
    whole steps of texts of like length, see ``LikeLengths``; the training data is an
    ExampleDataset.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  (Trainer's own)
        schedules: StepSchedules,
        target: ExitSchedule,
        groups_lengths: bool = False,
        distillation: DistillationConfig | None = None,
        teacher: SkipOPTForCausalLM | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self._schedules = schedules
        self._target = target
        self._groups_lengths = groups_lengths
        self._distillation = distillation
        self._teacher = None if teacher is None else teacher.to(self.args.device).eval()

    def _get_train_sampler(self, train_dataset: ExampleDataset | None = None) -> Any:  # noqa: ANN401
        """Trainer's hook for the order of examples; its own grouping forgets it on resuming."""
        dataset: ExampleDataset = train_dataset or self.train_dataset
        rows = (  # of one step, in all processes
            self.args.train_batch_size
            * self.args.gradient_accumulation_steps
            * self.args.world_size
        )
        pooled_steps = POOLED_STEPS if self._groups_lengths else 1
        return LikeLengths(dataset.lengths, rows, self.args.seed, pooled_steps=pooled_steps)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> Any:  # noqa: ANN401  (Trainer's: a step's batches, and their number of labels)
        """No batches after the last step: Trainer would resume a finished run by another step."""
        if self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # noqa: ANN401  (Trainer's: the loss, or the loss and the outputs)
        """Mean loss over the labels of the whole step, whatever its parts and processes."""
        schedule = self._target
        if model.training:
            schedule = self._schedules.at(self.state.global_step, self.state.max_steps)
        outputs = model(**inputs, schedule=schedule)
        shifted = inputs["labels"][:, 1:]
        targets = shifted[shifted != IGNORED_LABEL]  # [R]
        total = F.cross_entropy(outputs.logits, targets, reduction="sum")
        if self._distillation is not None and model.training:
            total = self._distil(total, outputs.logits, inputs, self._distillation)
        if num_items_in_batch is None:
            loss = total / targets.numel()
        else:
            # Gradients of several processes are averaged; this makes them the sum.
            loss = total * self.accelerator.num_processes / num_items_in_batch
        return (loss, {"loss": loss}) if return_outputs else loss

    def _distil(
        self, total: Tensor, logits: Tensor, inputs: dict[str, Tensor], config: DistillationConfig
    ) -> Tensor:
        """Blend the summed loss with the divergence from the teacher; logits are [R, V]."""
        assert self._teacher is not None
        full = ExitSchedule.full(self._target.num_layers)
        with torch.no_grad():
            wanted = self._teacher(**inputs, schedule=full).logits  # [R, V]
        divergence = F.kl_div(
            (logits / config.temperature).log_softmax(-1),
            (wanted / config.temperature).log_softmax(-1),
            reduction="sum",
            log_target=True,
        )
        scale = config.weight * config.temperature**2
        return (1 - config.weight) * total + scale * divergence
