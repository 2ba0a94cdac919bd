"""Skipped decoding equals the literal reference in tokens, log-probabilities and layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from reference import (
    Plan,
    assert_same_greedy_tokens,
    chosen_logprobs,
    linear_plan,
    logprob_deviation,
    reference_greedy,
)
from tiny_models import EVERY_STRUCTURE
from transformers import PreTrainedModel

from skipdec import ExitSchedule, Generator, SamplingParams
from skipdec.runtime.kv.prefixes import BLOCK_TOKENS

NUM_LAYERS, NUM_TOKENS = 6, 14
PROMPTS = [np.random.default_rng(n).integers(4, 131, n).tolist() for n in (6, 1, 13)]
# maximum, minimum, warm-up, horizon, placement
SCHEDULES = {
    "worked-example": (4, 2, 1, 4, "top"),
    "whole-depth-first": (6, 2, 1, 12, "top"),
    "two-warm-up-layers": (5, 3, 2, 8, "top"),
    "no-warm-up": (4, 1, 0, 9, "top"),
    "one-step": (5, 2, 1, 1, "top"),
    "constant": (3, 3, 1, 6, "top"),
    "early-termination": (5, 2, 0, 8, "bottom"),
    "early-termination-short": (3, 1, 0, 2, "bottom"),
}


def schedule_and_plan(name: str) -> tuple[ExitSchedule, Plan]:
    maximum, minimum, warmup, horizon, placement = SCHEDULES[name]
    schedule = ExitSchedule(
        num_layers=NUM_LAYERS,
        max_exit_layer=maximum,
        min_exit_layer=minimum,
        warmup_layers=warmup,
        horizon=horizon,
        placement=placement,
    )
    return schedule, linear_plan(NUM_LAYERS, *SCHEDULES[name])


@pytest.fixture(scope="module")
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    with Generator.open(exported("untied", kernels="auto"), threads=1) as generator:
        yield generator


@pytest.mark.parametrize("name", SCHEDULES)
def test_tokens_and_depth_equal_the_reference(
    name: str, generator: Generator, reference_model: Callable[[str], PreTrainedModel]
) -> None:
    model, (schedule, plan) = reference_model("untied"), schedule_and_plan(name)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    results = generator.generate(PROMPTS, params, schedule=schedule)
    depths = (NUM_LAYERS, *(len(plan(index)) for index in range(NUM_TOKENS - 1)))
    for prompt, result in zip(PROMPTS, results, strict=True):
        output = result.outputs[0]
        expected = reference_greedy(model, prompt, plan, NUM_TOKENS)
        assert_same_greedy_tokens(model, prompt, plan, output.token_ids, expected)
        assert output.layers_per_token == depths


@pytest.mark.parametrize(
    ("structure", "kernels"),
    [
        *((structure, "onnxruntime") for structure in EVERY_STRUCTURE),
        ("llama", "auto"),
        ("qwen3", "auto"),
    ],
)
@pytest.mark.parametrize("name", ["worked-example", "early-termination"])
def test_log_probabilities_equal_the_reference(
    structure: str,
    kernels: str,
    name: str,
    exported: Callable[..., Path],
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    """Sampling varies the texts; the value of every chosen token is compared."""
    model, (schedule, plan) = reference_model(structure), schedule_and_plan(name)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=3, logprobs=0)
    with Generator.open(exported(structure, kernels=kernels), threads=1) as generator:
        results = generator.generate(PROMPTS, params, schedule=schedule)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert logprob_deviation(model, prompt, result.outputs[0], plan) <= 2e-5


@pytest.mark.parametrize("name", ["worked-example", "early-termination"])
def test_tokens_after_a_reused_llama_prefix_equal_the_reference(
    name: str, exported: Callable[..., Path], reference_model: Callable[[str], PreTrainedModel]
) -> None:
    """Cached keys are rotated, so those of a prefix must stay at the row's beginning."""
    model, (schedule, plan) = reference_model("llama"), schedule_and_plan(name)
    beginning = np.random.default_rng(0).integers(4, 131, 2 * BLOCK_TOKENS).tolist()
    prompts = [[*beginning, 5, number] for number in (6, 7)]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with (
        Generator.open(exported("llama", kernels="auto"), threads=1) as generator,
        generator.running_batch() as batch,
    ):
        for prompt in prompts:
            number = batch.add(prompt, params, schedule=schedule)
            while batch.is_busy:
                batch.step()
            written = batch.take(number).outputs[0].token_ids
            expected = reference_greedy(model, prompt, plan, NUM_TOKENS)
            assert_same_greedy_tokens(model, prompt, plan, written, expected)
        assert batch.stats().prefix_tokens == len(beginning)


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("name", ["worked-example", "one-step", "early-termination"])
def test_teacher_forcing_equals_decoding_step_by_step(
    name: str, quantize: str, exported: Callable[..., Path]
) -> None:
    """This includes int8, whose integer sums are exact for one token or many."""
    schedule, _ = schedule_and_plan(name)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=5, logprobs=0)
    with Generator.open(exported("pre_norm", quantize=quantize), threads=1) as generator:
        results = generator.generate(PROMPTS, params, schedule=schedule)
        for prompt, result in zip(PROMPTS, results, strict=True):
            output = result.outputs[0]
            scored = generator.score([prompt], [output.token_ids], schedule=schedule)[0]
            chosen = chosen_logprobs(output)
            np.testing.assert_allclose(scored.logprobs, chosen, rtol=0, atol=2e-5)
            assert scored.layers_per_token == output.layers_per_token
