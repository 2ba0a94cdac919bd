"""Compare each placement and D3's decay with hand-written sets of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from reference import logprob_deviation
from transformers import PreTrainedModel

from skipdec import Generator, SamplingParams

NUM_TOKENS = 10
PROMPTS = [np.random.default_rng(n).integers(4, 131, n).tolist() for n in (6, 1, 13)]
# Layers of generated tokens 0, 1, …; the last set also holds for later ones. Six layers.
SCHEDULES: dict[str, list[tuple[int, ...]]] = {
    "constant:max=4,placement=unified": [(0, 2, 3, 5)],
    "constant:max=3,placement=unified": [(0, 3, 5)],
    "linear:max=4,min=2,horizon=4,placement=unified-nested": [
        (0, 2, 3, 5),
        (0, 2, 5),
        (0, 2, 5),
        (0, 5),
    ],
    "linear:max=5,min=2,horizon=4,placement=hierarchical": [
        (0, 1, 3, 4, 5),
        (0, 1, 3, 5),
        (0, 1, 5),
        (0, 5),
    ],
    "d3:max=6,min=2,alpha=0.8,placement=d3,tail=1": [
        (0, 1, 2, 3, 4, 5),
        (0, 1, 4, 5),
        (0, 4, 5),
        (0, 4, 5),
        (0, 5),
    ],
    "d3:max=6,min=2,alpha=0.8": [
        (0, 1, 2, 3, 4, 5),
        (0, 3, 4, 5),
        (0, 4, 5),
        (0, 4, 5),
        (0, 5),
    ],
}


@pytest.fixture(scope="module")
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    with Generator.open(exported("untied"), threads=1) as generator:
        yield generator


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_depths_and_log_probabilities_equal_the_reference(
    schedule: str, generator: Generator, reference_model: Callable[[str], PreTrainedModel]
) -> None:
    sets = SCHEDULES[schedule]

    def plan(index: int) -> tuple[int, ...]:
        return sets[min(index, len(sets) - 1)]

    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=3, logprobs=0)
    results = generator.generate(PROMPTS, params, schedule=schedule)
    for prompt, result in zip(PROMPTS, results, strict=True):
        output = result.outputs[0]
        assert output.layers_per_token == (6, *(len(plan(i)) for i in range(NUM_TOKENS - 1)))
        assert logprob_deviation(reference_model("untied"), prompt, output, plan) <= 2e-5
