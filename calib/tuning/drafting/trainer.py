"""Trains a draft layer on its own guesses, with the model frozen.

It starts as the model's last layer, whose input a linear map predicts from embedding and state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....engines.host.events import Events
from ....exporter.architecture.decoder import JOIN_EPSILON
from ...data.tokenised import TokenisedExample
from ..batches import batches
from ..model import IGNORED_LABEL
from ..trainer import OrderedTrainer
from .layer import DraftLayer, Reading, behind, guess_places
from .optimizer import DraftOptimizer

GUESSES = 3  # trained in a row
MOST_TOKENS = 4096  # scored by a draft layer
_FADING = 0.5  # weight of a guess ÷ that of the one before it
_FITTED_EXAMPLES = 256
_RIDGE = 3e-3  # of the mean of the diagonal


def kept_tokens(examples: Iterable[TokenisedExample], vocab_size: int) -> list[int]:
    """Return the most frequent tokens of completions, ascending: 4096, or half of all.

    If too few occur, the lowest other tokens complete the list.
    """
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.completion_token_ids)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return sorted(ranked[: min(MOST_TOKENS, max(1, vocab_size // 2))])


@torch.no_grad()
def fit_entry(
    layer: DraftLayer,
    examples: Sequence[TokenisedExample],
    batch_size: int,
    events: Events,
) -> None:
    """Fit the map to the draft layer's input so that it best predicts the last layer's input.

    The draft layer thus starts as the model itself, with a linear prediction in place of all layers
    below the last. The map is solved for the directions of the states of up to 256 examples, and
    scaled to the median of their magnitudes. ``events`` advances by a step for each batch.
    """
    width = layer.entry.shape[0]
    gram = torch.zeros(2 * width, 2 * width, dtype=torch.float64, device=layer.entry.device)
    cross, sizes = gram[:, :width].clone(), []
    chosen = examples[:: -(-len(examples) // _FITTED_EXAMPLES)]
    events.stage("fitting the draft layer's input", -(-len(chosen) // batch_size))
    for batch in batches(chosen, batch_size, layer.entry.device):
        reading, places = layer.read(batch["input_ids"][:, :-1]), _labelled(batch)
        before = behind(layer.joined(reading.states))
        given = torch.cat([_direction(reading.embedded), _direction(before)], dim=-1)[places]
        wanted = reading.last[places]
        gram += (given.T @ given).double()
        cross += (given.T @ _direction(wanted)).double()
        sizes.append(wanted.float().square().mean(-1).sqrt())
        events.advance()
    if not gram.any():
        return
    ridge = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) * gram.diagonal().mean()
    solved = torch.linalg.solve(gram + _RIDGE * ridge, cross).T * torch.cat(sizes).median()
    layer.entry.copy_(solved)


class DraftLayerTrainer(OrderedTrainer):
    """Trains a `DraftLayer` to predict full depth's probabilities of the tokens that it scores.

    The loss of a guess is the KL divergence from those probabilities, normalised as if there were
    no other tokens and weighted by their share of all. Later guesses weigh less.
    """

    def __init__(self, *args: Any, model: DraftLayer, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, model=model, **kwargs)
        self._layer = model
        model.base.to(self.args.device)

    def create_optimizer(self, model: nn.Module | None = None) -> DraftOptimizer:
        """Return the optimizer; Trainer calls this once."""
        layer = self._layer
        inside = [each for each in layer.layer.parameters() if each.ndim == 2]
        matrices = dict.fromkeys((layer.states, layer.entry, *inside))
        others = [each for each in layer.parameters() if each not in matrices]
        rate, decay = self.args.learning_rate, self.args.weight_decay
        self.optimizer: DraftOptimizer = DraftOptimizer(matrices, others, rate, decay)
        return self.optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the labels of the whole step, in all processes."""
        layer, prompt_lengths = self._layer, inputs["prompt_lengths"]
        places = guess_places(_labelled(inputs), prompt_lengths, GUESSES)  # [guesses, B, S-1]
        with torch.no_grad(), self.accelerator.autocast():
            reading = layer.read(inputs["input_ids"][:, :-1])
            wanted = _probabilities(layer, reading, places[0])  # [R, N]
        guesses = model(reading, prompt_lengths, places)  # [R, N] each, fewer of later ones
        weights = [_FADING**guess for guess in range(GUESSES)]
        total = torch.zeros((), device=wanted.device)
        for logits, at, weight in zip(guesses, places, weights, strict=True):
            held = wanted[at[places[0]]]
            total = total + weight / sum(weights) * weighted_divergence(logits, held)
        return self.mean(total, len(wanted), num_items_in_batch)


def weighted_divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return Σ mass · KL(wanted ÷ mass ‖ logits) over rows [R, N], in nats.

    ``wanted`` are the probabilities of some tokens, and ``mass`` is their sum.
    """
    mass = wanted.sum(-1, keepdim=True)
    least = torch.xlogy(wanted, wanted / mass.clamp(min=1e-9))
    return (least - wanted * logits.float().log_softmax(-1)).sum()


def _probabilities(layer: DraftLayer, reading: Reading, places: Tensor) -> Tensor:
    """Return full depth's probabilities [R, N] of the tokens that the draft layer scores."""
    whole: Tensor = layer.base.head(reading.top[places]).softmax(-1)  # [R, V]
    return whole[:, layer.token_ids]


def _labelled(batch: dict[str, Tensor]) -> Tensor:
    """Return where a draft guesses a labelled token, bool [B, S-1]: after the prompt."""
    labelled = batch["labels"][:, 1:] != IGNORED_LABEL
    return guess_places(labelled, batch["prompt_lengths"], 1)[0]


def _direction(states: Tensor) -> Tensor:
    return F.rms_norm(states.float(), (states.shape[-1],), None, JOIN_EPSILON)
