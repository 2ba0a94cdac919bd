"""Hidden states of texts on their way through the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .calibration_engines import run_layer
from .calibration_texts import PackedTexts

_HEAD_ROWS = 256  # logits at a time: 50 MiB with OPT's vocabulary


class HiddenStates:
    """The hidden states [N, E] of ``texts``, float32, moved from layer to layer in place."""

    def __init__(self, texts: PackedTexts, values: Tensor) -> None:
        self.texts = texts
        self.values = values

    @classmethod
    def embed(cls, texts: PackedTexts, embedding: nn.Module) -> HiddenStates:
        """What the first layer reads."""
        parts = [
            embedding(texts.input_ids[:, start:stop], texts.position_ids[:, start:stop])[0]
            for start, stop in texts.spans
        ]
        return cls(texts, torch.cat(parts))

    def copy(self, texts: PackedTexts | None = None) -> HiddenStates:
        """A copy, of ``texts`` alone where they are the first ones of these."""
        chosen = self.texts if texts is None else texts
        return HiddenStates(chosen, self.values[: len(chosen)].clone())

    def read(self, index: int, layer: nn.Module) -> None:
        """Run layer ``index`` for those who observe its products; nothing moves."""
        for batch in self.texts.batches(index):
            run_layer(layer, self.values[batch.rows], batch.mask)

    def advance(self, index: int, layer: nn.Module) -> None:
        """Run layer ``index`` on the tokens that run it; the others stay as they are."""
        for batch in self.texts.batches(index):
            self.values[batch.rows] = run_layer(layer, self.values[batch.rows], batch.mask)

    def losses(self, head: nn.Module) -> Tensor:
        """Cross-entropy of each token that is to be predicted, [R], nats."""
        parts = []
        predicting, targets = self.texts.predicting, self.texts.targets
        for start in range(0, len(targets), _HEAD_ROWS):
            rows = predicting[start : start + _HEAD_ROWS]  # [r]
            logits = head(self.values[rows][None], torch.arange(len(rows)))  # [r, V]
            wanted = targets[start : start + _HEAD_ROWS]
            parts.append(F.cross_entropy(logits, wanted, reduction="none"))
        return torch.cat(parts)
