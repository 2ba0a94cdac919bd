"""Compute drafts literally with transformers' layers, one window and one token at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from reference import family_of
from torch import Tensor, nn
from transformers import PreTrainedModel

Chain = Sequence[tuple[nn.Module, int]]
"""The layers that a draft runs; each with the index of the layer whose full-depth input it has had
at earlier places."""


def chain_of(model: PreTrainedModel, layers: Sequence[int]) -> Chain:
    """Return the chain of modules of a draft that runs ``layers`` of the model."""
    return [(family_of(model).decoder.layers[index], index) for index in layers]


@torch.no_grad()
def draft_logits(model: PreTrainedModel, tokens: Sequence[int], start: int, chain: Chain) -> Tensor:
    """Return logits [n - start, V] of drafts fed tokens[start:] after full depth's tokens."""
    before = [each[:, :start] for each in _inputs(model, tokens)]
    hidden = _embedded(model, tokens)[:, start:]
    for layer, index in chain:
        states = torch.cat([before[index], hidden], dim=1)  # [1, n, E]
        hidden = _run(model, layer, states)[:, start:]
    return model.lm_head(family_of(model).finished(hidden))[0]


def count_held(model: PreTrainedModel, tokens: Sequence[int], place: int, chain: Chain) -> int:
    """Return how many of 6 greedy drafts after ``place`` equal the tokens there."""
    fed = list(tokens[: place + 1])
    for held in range(6):
        drafted = int(draft_logits(model, fed, place, chain)[-1].argmax())
        if drafted != tokens[place + 1 + held]:
            return held
        fed.append(drafted)
    return 6


def greedy(model: PreTrainedModel, prompt: Sequence[int], end: int, count: int) -> tuple[int, ...]:
    """Return at most ``count`` greedy tokens after ``prompt``, up to ``end``."""
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + count and (tokens[-1] != end or tokens == list(prompt)):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


def _embedded(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    return family_of(model).embedded(torch.tensor(tokens))[None]


@torch.no_grad()
def _inputs(model: PreTrainedModel, tokens: Sequence[int]) -> list[Tensor]:
    """Return each layer's input at full depth, [1, n, E]."""
    found = [_embedded(model, tokens)]
    for layer in family_of(model).decoder.layers[:-1]:
        found.append(_run(model, layer, found[-1]))
    return found


def _run(model: PreTrainedModel, layer: nn.Module, states: Tensor) -> Tensor:
    """Run [1, n, E] through a layer, causally."""
    size = states.shape[1]
    causal = torch.full((size, size), -torch.inf).triu(1)[None, None]
    more = family_of(model).positions(states, list(range(size)))
    output: Tensor = layer(states, attention_mask=causal, **more)
    return output
