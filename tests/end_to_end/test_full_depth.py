"""At full depth a bundle generates the same tokens as Hugging Face's own generate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import assert_same_greedy_tokens, full_plan
from tiny_models import EVERY_STRUCTURE
from transformers import PreTrainedModel

from skipdec import Generator, SamplingParams

NUM_TOKENS = 24
PAD = 1


def ragged_prompts(*lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(7)
    return [generator.integers(4, 131, length).tolist() for length in lengths]


def hugging_face_greedy(
    model: PreTrainedModel, prompts: list[list[int]], *, eos_token_id: int | None
) -> list[list[int]]:
    """Run ``model.generate`` on one left-padded batch; rows end at the end-of-text token."""
    model.generation_config.eos_token_id = eos_token_id
    longest = max(map(len, prompts))
    padded = torch.tensor([[PAD] * (longest - len(row)) + row for row in prompts])  # [B, S]
    lengths = torch.tensor([[len(row)] for row in prompts])  # [B, 1]
    mask = (torch.arange(longest) >= longest - lengths).long()  # [B, S]
    output = model.generate(
        padded, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=PAD
    )
    rows: list[list[int]] = output[:, longest:].tolist()
    if eos_token_id is None:
        return rows
    return [row[: row.index(eos_token_id) + 1] if eos_token_id in row else row for row in rows]


@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
@pytest.mark.parametrize(
    ("lengths", "kernels"),
    [((17,), "onnxruntime"), ((3, 11, 1, 7), "auto")],
    ids=["long", "ragged"],
)
def test_tokens_equal_hugging_face_generate(
    structure: str,
    lengths: tuple[int, ...],
    kernels: str,
    exported: Callable[..., Path],
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    model, prompts = reference_model(structure), ragged_prompts(*lengths)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with Generator.open(exported(structure, kernels=kernels), threads=1) as generator:
        results = generator.generate(prompts, params, schedule="full")
    expected = hugging_face_greedy(model, prompts, eos_token_id=None)
    for prompt, result, wanted in zip(prompts, results, expected, strict=True):
        assert_same_greedy_tokens(model, prompt, full_plan(6), result.outputs[0].token_ids, wanted)


@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
def test_rows_that_end_early_do_not_change_others(
    structure: str,
    exported: Callable[..., Path],
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    """The model generates the stop token at a different step in each row."""
    model, prompts = reference_model(structure), ragged_prompts(5, 1, 9, 2)
    stop = hugging_face_greedy(model, prompts, eos_token_id=None)[0][3]
    expected = hugging_face_greedy(model, prompts, eos_token_id=stop)
    params = SamplingParams(
        temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, stop_token_ids=[stop]
    )
    with Generator.open(exported(structure), threads=1) as generator:
        results = generator.generate(prompts, params, schedule="full")
    assert len(expected[0]) < NUM_TOKENS
    for prompt, result, wanted in zip(prompts, results, expected, strict=True):
        assert_same_greedy_tokens(model, prompt, full_plan(6), result.outputs[0].token_ids, wanted)
