"""Measured acceptance equals that of drafting token by token from every position of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixture_types import Checkpoints
from literal_drafts import Chain, chain_of, count_held, greedy
from tiny_models import STRUCTURES
from transformers import OPTForCausalLM

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.drafting.acceptance import (
    greedy_texts,
    held_by_layers,
    measure_acceptance,
)
from skipdec.calib.tuning.family import load_skip_model
from skipdec.engines.host.events import Events

PROMPTS = ((5, 6, 7, 9), (8,), (90, 14, 20))
END = 2
MAX_SEQ_LEN = 26


def plan(prompts: tuple[tuple[int, ...], ...] | None = PROMPTS) -> Any:  # noqa: ANN401
    examples = [TokenisedExample(prompt, (END,), "") for prompt in (prompts or ()) * 2]
    return SimpleNamespace(
        validation=None if prompts is None else SimpleNamespace(examples=examples),
        model=SimpleNamespace(max_seq_len=MAX_SEQ_LEN, end_token_ids=(END,)),
        config=SimpleNamespace(batch_size=2),
    )


@pytest.fixture
def models_of(checkpoint: Checkpoints, tmp_path: Path) -> Callable[[str], tuple[Any, Any]]:
    """Return a model whose drafts are often accepted, in our class and in transformers'."""

    def make(structure: str) -> tuple[Any, Any]:
        plain = OPTForCausalLM.from_pretrained(checkpoint(structure))
        with torch.no_grad():
            for layer in plain.model.decoder.layers[1:]:
                for product in (layer.fc2, layer.self_attn.out_proj):
                    product.weight *= 0.2
        plain.save_pretrained(tmp_path)
        return load_skip_model(tmp_path, "opt").eval(), plain.eval()

    return make


def expected(plain: OPTForCausalLM, chain: Chain) -> list[int]:
    counts = []
    for prompt in PROMPTS:
        longest = max(len(each) for each in PROMPTS)
        text = greedy(plain, prompt, END, MAX_SEQ_LEN - longest)
        tokens = [*prompt, *text]
        counts += [
            count_held(plain, tokens, index, chain) for index in range(len(prompt), len(tokens) - 6)
        ]
    return counts


@pytest.mark.parametrize("structure", STRUCTURES)
def test_acceptance_equals_that_of_literal_drafts(
    structure: str,
    models_of: Callable[[str], tuple[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, plain = models_of(structure)
    longest = max(len(each) for each in PROMPTS)
    limit = "skipdec.calib.tuning.drafting.acceptance.MAX_TOKENS"
    monkeypatch.setattr(limit, MAX_SEQ_LEN - longest)
    counts = expected(plain, chain_of(plain, (0, 4, 5)))
    texts = greedy_texts(model, plan(), Events())
    found = measure_acceptance(model, texts, held_by_layers(model, (0, 4, 5)))
    assert found is not None
    assert (found.texts, found.spans) == (len(PROMPTS), len(counts))
    assert found.held_of_6 == pytest.approx(sum(counts) / len(counts), abs=1e-4)
    assert found.first == pytest.approx(sum(count > 0 for count in counts) / len(counts), abs=1e-4)
    assert 0 < found.held_of_6 < 6, "some drafts are accepted and some rejected"


def test_acceptance_needs_long_texts(checkpoint: Checkpoints) -> None:
    model = load_skip_model(checkpoint("pre_norm"), "opt")
    held = held_by_layers(model, (0, 5))
    assert measure_acceptance(model, greedy_texts(model, plan(None), Events()), held) is None
    long = tuple(range(4, 4 + MAX_SEQ_LEN - 3))  # leaves room for 3 tokens
    assert measure_acceptance(model, greedy_texts(model, plan((long,)), Events()), held) is None
