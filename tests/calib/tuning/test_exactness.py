"""The training model equals decoding by the reference and by the exported bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import Checkpoints, Exported
from ragged_batches import batch_of
from reference import reference_logits
from tiny_models import EVERY_STRUCTURE
from transformers import AutoConfig, PreTrainedModel

from skipdec import ExitSchedule, Generator
from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.family import load_skip_model
from skipdec.calib.tuning.model import SkipModel, active_lengths, attention
from skipdec.calib.tuning.skip_models import SkipOPTForCausalLM
from skipdec.engines.errors import UsageError
from skipdec.runtime.schedule.placements import PLACEMENTS
from skipdec.runtime.schedule.text import parse_schedule

# A prompt of one token, one longer than another's whole text, completions of 1 to 12 tokens.
LENGTHS = ((6, 12), (1, 9), (19, 4), (4, 1))
SCHEDULE_OF_PLACEMENT = {
    "top": "linear:max=5,min=2,warmup=1,horizon=6",
    "bottom": "linear:max=4,min=1,warmup=0,horizon=7,placement=bottom",
    "unified": "constant:max=3,placement=unified",
    "unified-nested": "cosine:max=5,min=2,horizon=8,placement=unified-nested",
    "hierarchical": "linear:max=6,min=2,horizon=9,placement=hierarchical",
    "d3": "linear:max=6,min=3,horizon=6,placement=d3,tail=2",
}


def examples() -> list[TokenisedExample]:
    random = np.random.default_rng(2)
    return [
        TokenisedExample(
            tuple(random.integers(4, 131, prompt).tolist()),
            tuple(random.integers(4, 131, completion).tolist()),
            "",
        )
        for prompt, completion in LENGTHS
    ]


def skip_model(checkpoint: Path) -> SkipModel:
    family = AutoConfig.from_pretrained(checkpoint).model_type
    return load_skip_model(checkpoint, family).eval()


@torch.no_grad()
def forced_logprobs(
    model: SkipModel, rows: Sequence[TokenisedExample], schedule: ExitSchedule
) -> list[torch.Tensor]:
    """Return log-probabilities [G, V] after each row's prompt and fed tokens, from one ragged
    batch.
    """
    logits = model(**batch_of(rows), schedule=schedule).logits
    return list(logits.log_softmax(-1).split([len(row.completion_token_ids) for row in rows]))


@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
@pytest.mark.parametrize("placement", ["top", "bottom"])
def test_a_ragged_batch_equals_the_literal_reference(
    placement: str,
    structure: str,
    checkpoint: Checkpoints,
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    schedule = parse_schedule(SCHEDULE_OF_PLACEMENT[placement], num_layers=6)
    rows = examples()
    forced = forced_logprobs(skip_model(checkpoint(structure)), rows, schedule)
    for row, actual in zip(rows, forced, strict=True):
        logits = reference_logits(
            reference_model(structure),
            row.prompt_token_ids,
            row.completion_token_ids[:-1],
            lambda index: schedule.plan(index).layers,
        )
        torch.testing.assert_close(actual, logits.log_softmax(-1), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "text",
    [
        *(SCHEDULE_OF_PLACEMENT[placement] for placement in PLACEMENTS),
        "linear:max=3,min=2,warmup=1,horizon=6,prompt=decay",
        "linear:max=4,min=2,warmup=1,horizon=6,placement=hierarchical,prompt=decay",
    ],
)
@pytest.mark.parametrize("structure", ["post_norm", "llama"])
def test_teacher_forcing_equals_the_exported_bundle(
    structure: str, text: str, checkpoint: Checkpoints, exported: Exported
) -> None:
    schedule = parse_schedule(text, num_layers=6)
    rows = examples()
    forced = forced_logprobs(skip_model(checkpoint(structure)), rows, schedule)
    with Generator.open(exported(structure), threads=1) as generator:
        scored = generator.score(
            [list(row.prompt_token_ids) for row in rows],
            [list(row.completion_token_ids) for row in rows],
            schedule=schedule,
        )
    for row, actual, expected in zip(rows, forced, scored, strict=True):
        tokens = list(row.completion_token_ids)
        chosen = actual[range(len(tokens)), tokens].numpy()
        np.testing.assert_allclose(chosen, expected.logprobs, rtol=0, atol=2e-5)


def test_a_layer_runs_on_no_more_positions_than_the_longest_prefix(checkpoint: Checkpoints) -> None:
    """Use the worked example of the module with a row whose prompt is one token shorter."""
    schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
    rows = [TokenisedExample((5, 6), (7, 8, 9, 10, 11), ""), TokenisedExample((5,), (7, 8), "")]
    model = skip_model(checkpoint("pre_norm"))
    positions: list[int] = []
    for layer in model.model.decoder.layers:
        layer.register_forward_pre_hook(lambda _, inputs: positions.append(inputs[0].shape[1]))
    forced_logprobs(model, rows, schedule)
    assert positions == [6, 2, 2, 3, 5, 6]
    lengths = active_lengths(schedule, torch.tensor([2, 1]), torch.tensor([6, 2]))
    assert lengths.T.tolist() == [[6, 2, 2, 3, 5, 6], [2, 1, 1, 2, 2, 2]]


def test_gradients_flow_through_every_parameter(checkpoint: Checkpoints) -> None:
    """Include recomputed activations; the prompt runs all layers, so all parameters take part."""
    schedule = parse_schedule(SCHEDULE_OF_PLACEMENT["bottom"], num_layers=6)
    gradients = []
    for recompute in (False, True):
        model = skip_model(checkpoint("post_norm")).train()
        if recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        logits = model(**batch_of(examples()[:2]), schedule=schedule).logits
        logits.logsumexp(-1).sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        assert gradient.abs().sum() > 0, name
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("tokens", [9, 513])
def test_attention_is_causal_in_every_number_type(tokens: int) -> None:
    """Autocast computes in float32 up to 512 tokens, in bfloat16 beyond; the result is bfloat16."""
    module = torch.nn.Module()
    draw = torch.Generator().manual_seed(0)
    sizes = (2, 3, tokens, 8)  # B, H, S, D
    inputs = [torch.randn(sizes, generator=draw).bfloat16() for _ in range(3)]
    query, key, value = (tensor.float() for tensor in inputs)
    scores = query @ key.transpose(-1, -2)
    scores += torch.full((tokens, tokens), -torch.inf).triu(1)
    expected = (scores.softmax(-1) @ value).transpose(1, 2)  # [B, S, H, D]
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = attention(module, *inputs, None, scaling=1.0, is_causal=True)
    torch.testing.assert_close(half, expected.bfloat16(), rtol=0.01, atol=4e-3)
    whole, _ = attention(module, query, key, value, None, scaling=1.0, is_causal=True)
    torch.testing.assert_close(whole, expected)


def test_attention_without_causality_is_refused(checkpoint: Checkpoints) -> None:
    with pytest.raises(UsageError, match="eager"):
        SkipOPTForCausalLM.from_pretrained(checkpoint("pre_norm"), attn_implementation="eager")
