"""The loss of examples at a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from ..runtime.schedule import ExitSchedule
from .skip_model import IGNORED_LABEL, SkipOPTForCausalLM
from .tokenised import TokenisedExample
from .tune_batches import ExampleDataset, collate


@torch.no_grad()
def mean_loss(
    model: SkipOPTForCausalLM,
    examples: Sequence[TokenisedExample],
    schedule: ExitSchedule,
    *,
    batch_size: int = 16,
) -> float:
    """Mean cross-entropy of the completions' tokens, teacher-forced, in nats a token.

    Every token counts alike, whatever its batch. The model is left in its mode, on its device.
    """
    dataset = ExampleDataset(sorted(examples, key=len))  # texts of like length: little padding
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(dataset), batch_size):
        stop = min(start + batch_size, len(dataset))
        batch = collate([dataset[index] for index in range(start, stop)])
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        shifted = batch["labels"][:, 1:]
        targets = shifted[shifted != IGNORED_LABEL]  # [R]
        logits = model(**batch, schedule=schedule).logits  # [R, V]
        total += float(F.cross_entropy(logits, targets, reduction="sum"))
        count += targets.numel()
    model.train(was_training)
    return total / count
