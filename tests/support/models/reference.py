"""Decode with skipping literally: without KV cache, one row, in plain torch.

Every position recomputes everything. Position p runs the layers ``depths[p]``; in each layer a
token attends to itself and to the earlier tokens that run this layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from skipdec import CompletionOutput

Plan = Callable[[int], Sequence[int]]  # generated index i -> layers that run, ascending
Prompt = Callable[[int, int], Sequence[int]]  # prompt index and length -> layers that run


def linear_plan(
    num_layers: int, maximum: int, minimum: int, warmup: int, horizon: int, placement: str = "top"
) -> Plan:
    """Return a linear decay from ``maximum`` to ``minimum`` layers over ``horizon`` tokens."""

    def plan(index: int) -> list[int]:
        if horizon == 1:
            exact = float(maximum if index == 0 else minimum)
        else:
            exact = maximum - (maximum - minimum) * min(index, horizon - 1) / (horizon - 1)
        budget = math.floor(exact + 0.5)
        if placement == "bottom":
            return list(range(budget))
        return [*range(warmup), *range(num_layers - (budget - warmup), num_layers)]

    return plan


def full_plan(num_layers: int) -> Plan:
    """Return a plan that runs every layer for every token."""
    return lambda index: range(num_layers)


def decaying_prompt(num_layers: int, maximum: int, sets: Callable[[int], Sequence[int]]) -> Prompt:
    """Return a plan of prompt tokens whose budgets fall to ``maximum``; ``sets`` chooses layers."""

    def plan(index: int, length: int) -> Sequence[int]:
        if length == 1:
            return range(num_layers)
        exact = num_layers - Fraction((num_layers - maximum) * index, length - 1)
        return sets(math.floor(exact + Fraction(1, 2)))

    return plan


@torch.no_grad()
def reference_logits(
    model: PreTrainedModel,
    prompt: Sequence[int],
    generated: Sequence[int],
    plan: Plan,
    prompt_plan: Prompt | None = None,
) -> torch.Tensor:
    """Return logits [G + 1, V] after the prompt and after each of G generated tokens.

    ``prompt_plan`` holds the layers of each prompt token; None means all.
    """
    family = family_of(model)
    token_ids = torch.tensor([*prompt, *generated])  # [P]
    prompt_plan = prompt_plan or (lambda index, length: range(len(family.decoder.layers)))
    depths = [prompt_plan(index, len(prompt)) for index in range(len(prompt))]
    depths += [plan(index) for index in range(len(generated))]

    hidden = family.embedded(token_ids)  # [P, E]
    for index, layer in enumerate(family.decoder.layers):
        active = [position for position, depth in enumerate(depths) if index in depth]
        if not active:
            continue
        causal = torch.full((len(active), len(active)), -torch.inf).triu(1)[None, None]
        states = hidden[active][None]
        more = family.positions(states, active)
        hidden[active] = layer(states, attention_mask=causal, **more)[0]
    logits: torch.Tensor = model.lm_head(family.finished(hidden[len(prompt) - 1 :]))  # [G + 1, V]
    return logits


def family_of(model: PreTrainedModel) -> OptParts | RotaryParts:
    """Return the parts of a model that run before, between and after its layers."""
    return OptParts(model) if model.config.model_type == "opt" else RotaryParts(model)


class OptParts:
    """Computes what precedes and follows the layers of an OPT, which use no positions."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder = model.model.decoder

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.decoder.embed_tokens(token_ids)  # [P, W]
        if self.decoder.project_in is not None:
            hidden = self.decoder.project_in(hidden)
        return hidden + self.decoder.embed_positions.weight[torch.arange(len(token_ids)) + 2]

    def positions(self, states: torch.Tensor, active: list[int]) -> dict[str, Any]:
        return {}

    def finished(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.decoder.final_layer_norm is not None:
            hidden = self.decoder.final_layer_norm(hidden)
        return hidden if self.decoder.project_out is None else self.decoder.project_out(hidden)


class RotaryParts:
    """Computes what precedes and follows the layers of a LLaMA, which rotate by position."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder = model.model
        self.embedding_multiplier = getattr(model.config, "embedding_multiplier", 1.0)  # Granite's
        self.logits_scaling = getattr(model.config, "logits_scaling", 1.0)

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.decoder.embed_tokens(token_ids) * self.embedding_multiplier

    def positions(self, states: torch.Tensor, active: list[int]) -> dict[str, Any]:
        turns = self.decoder.rotary_emb(states, torch.tensor([active]))
        return {"position_embeddings": turns}

    def finished(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.norm(hidden) / self.logits_scaling


def reference_greedy(
    model: PreTrainedModel, prompt: Sequence[int], plan: Plan, num_tokens: int
) -> list[int]:
    """Continue greedily for exactly ``num_tokens`` tokens."""
    generated: list[int] = []
    for _ in range(num_tokens):
        generated.append(int(reference_logits(model, prompt, generated, plan)[-1].argmax()))
    return generated


def assert_same_greedy_tokens(
    model: PreTrainedModel,
    prompt: Sequence[int],
    plan: Plan,
    actual: Sequence[int],
    expected: Sequence[int],
) -> None:
    """Assert equal tokens up to a tie, where both candidates' logits are within 1e-4.

    After a tie the rows read different texts, so the comparison ends there.
    """
    assert len(actual) == len(expected)
    for position, (token, wanted) in enumerate(zip(actual, expected, strict=True)):
        if token != wanted:
            logits = reference_logits(model, prompt, expected[:position], plan)[-1]
            gap = float(logits[wanted] - logits[token])
            assert abs(gap) < 1e-4, f"token {position} is {token}, not {wanted}; gap {gap:.2e}"
            return


def chosen_logprobs(output: CompletionOutput) -> list[float]:
    """Return the log-probability of each token of ``output``."""
    assert output.logprobs is not None
    pairs = zip(output.logprobs, output.token_ids, strict=True)
    return [row[token].logprob for row, token in pairs]


def logprob_deviation(
    model: PreTrainedModel,
    prompt: Sequence[int],
    output: CompletionOutput,
    plan: Plan,
    prompt_plan: Prompt | None = None,
) -> float:
    """Return the largest error of the log-probability of a token of ``output``."""
    chosen = list(output.token_ids)
    logits = reference_logits(model, prompt, chosen[:-1], plan, prompt_plan)  # [G, V]
    expected = logits.log_softmax(-1)[range(len(chosen)), chosen]
    return float((torch.tensor(chosen_logprobs(output)) - expected).abs().max())
