"""A decoder layer of a draft's own, and its training while the model is frozen.

A draft runs layers 0 … E−1 of the model, the draft layer, and the model's final norm and head. When
texts are written, the draft layer's keys and values are made from full depth's states after layer
E−1, and in a span from the drafts'. While drafts hold, these are the same states. So one
teacher-forced causal pass over a text gives the draft of every position as it will be made.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..model import IGNORED_LABEL, SkipModel
from ..trainer import OrderedTrainer, kl_divergence


class DraftLayer(nn.Module):
    """A decoder layer of the model's own structure, behind the model's lowest ``behind`` layers.

    ``base`` is the frozen model, which is not a part of this module: neither trained, nor saved,
    nor moved with it.
    """

    accepts_loss_kwargs = True  # makes Trainer count the labels of a whole step
    base: SkipModel

    def __init__(self, base: SkipModel, behind: int) -> None:
        super().__init__()
        base.requires_grad_(False).eval()
        object.__setattr__(self, "base", base)  # nn.Module would register it
        self.behind = behind
        self.layer = copy.deepcopy(base.decoder_layers[-1]).requires_grad_(True)

    def forward(self, hidden: Tensor) -> Tensor:
        """Run full depth's states after the layers below, [B, S, E], causally; [B, S, E]."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)  # [S]
        return self.base.run_layer(self.layer, hidden, positions)


class DraftLayerTrainer(OrderedTrainer):
    """Trains a `DraftLayer` by KL(full depth ‖ draft), the mean over the labels of a step."""

    def __init__(self, *args: Any, model: DraftLayer, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, model=model, **kwargs)
        self._base = model.base.to(self.args.device)
        self._behind = model.behind

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # noqa: ANN401  (Trainer's: the loss, or the loss and the outputs)
        """Return the mean divergence over the labels of the whole step, in all processes."""
        base = self._base
        fed = inputs["input_ids"][:, :-1]  # [B, S-1]
        labelled = inputs["labels"][:, 1:] != IGNORED_LABEL  # [B, S-1]
        with torch.no_grad(), self.accelerator.autocast():
            positions = torch.arange(fed.shape[1], device=fed.device)  # [S-1]
            embedded = base.embedded(fed, positions)  # [B, S-1, E]
            below = base.run_layers(base.decoder_layers[: self._behind], embedded, positions)
            top = base.run_layers(base.decoder_layers[self._behind :], below, positions)
            wanted = base.head(top[labelled])  # [R, V]
        drafts = model(below)  # [B, S-1, E]
        with self.accelerator.autocast():
            logits = base.head(drafts[labelled])  # [R, V]
        total = kl_divergence(logits, wanted)
        loss = self.mean(total, len(wanted), num_items_in_batch)
        return (loss, {"loss": loss}) if return_outputs else loss
