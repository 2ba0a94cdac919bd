"""The baseline generates the same as Hugging Face, from the weights that skipdec exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks.gpu import compiled_baseline

from skipdec.exporter.architecture.architecture import expected_tensors, family_config
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.checkpoint.dummy import DummyReader
from skipdec.runtime.measuring.prompts import random_prompts

if TYPE_CHECKING:
    from transformers import OPTForCausalLM

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "num_attention_heads": 2,
    "ffn_dim": 128,
}


def test_tokens_are_those_of_hugging_face(
    monkeypatch: pytest.MonkeyPatch, reference_model: Callable[[str], OPTForCausalLM]
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = reference_model("pre_norm")
    # Of seed 3: the continuations vary, and no first choice is within 0.03 of the second.
    rows = random_prompts(model.config.vocab_size, batch_size=2, prompt_length=5, seed=3)
    prompts = torch.tensor(rows)  # [B, P]
    expected = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=6,
        min_new_tokens=6,
    )
    decoder = compiled_baseline.CompiledDecoder(model, capacity=16)
    for _ in range(2):  # the second run finds the cache of the first
        decoded = decoder.run(prompts, 5)
        assert torch.equal(decoded.tokens, expected[:, 5:])
    assert decoded.decode_seconds > 0


def test_weights_are_those_of_a_dummy_export(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**(family_config("opt-125m") or {}), **TINY}
    monkeypatch.setattr(compiled_baseline, "family_config", lambda _: config)
    model = compiled_baseline.dummy_model("opt-125m", torch.float16, "cpu", seed=3)
    spec = model_spec(config, "opt-125m")
    reader = DummyReader(expected_tensors(spec), 3)
    for name in reader.names():
        held = model.get_parameter(f"model.{name}").detach().numpy()
        assert (held == reader.read(name)).all(), name
