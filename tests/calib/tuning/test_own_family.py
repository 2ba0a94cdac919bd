"""Tuning another family takes a file and a registry line: a test adds OLMo's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from registration import new_file
from torch import Tensor, nn
from transformers import OlmoConfig, OlmoForCausalLM

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.batches import ExampleDataset, collate
from skipdec.calib.tuning.family import TUNING_FAMILIES, load_skip_model
from skipdec.calib.tuning.model import SkipModel
from skipdec.engines.errors import CheckpointError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
}
ROWS = [TokenisedExample((3, 1, 4), (15, 9, 2, 6), ""), TokenisedExample((5,), (35, 8), "")]


class SkipOlmo(SkipModel, OlmoForCausalLM):
    plain_class = OlmoForCausalLM

    @property
    def decoder_layers(self) -> Sequence[nn.Module]:
        return self.model.layers

    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def run_layer(
        self, layer: nn.Module, hidden: Tensor, positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        turns = self.model.rotary_emb(hidden, positions[None])
        return layer(hidden, attention_mask=mask, position_embeddings=turns)

    def head(self, rows: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(rows)).float()


class OlmoTuning:
    adapter_targets = ("q_proj", "v_proj")

    def model_class(self) -> type[SkipOlmo]:
        return SkipOlmo


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, OlmoForCausalLM]:
    monkeypatch.setitem(
        TUNING_FAMILIES, "olmo", new_file(monkeypatch, "a_new_family", OlmoTuning())
    )
    torch.manual_seed(0)
    model = OlmoForCausalLM(OlmoConfig(**SIZES)).eval()
    model.save_pretrained(tmp_path)
    return tmp_path, model


def literal(model: OlmoForCausalLM, row: TokenisedExample, schedule: ExitSchedule) -> Tensor:
    """Return logits [G, V] after the prompt and each fed token, with each token at its depth."""
    tokens = torch.tensor([*row.prompt_token_ids, *row.completion_token_ids[:-1]])
    prompt, decoder = len(row.prompt_token_ids), model.model
    hidden = decoder.embed_tokens(tokens)  # [n, E]
    for index, layer in enumerate(decoder.layers):
        active = [
            place
            for place in range(len(tokens))
            if place < prompt or index in schedule.plan(place - prompt).layers
        ]
        causal = torch.full((len(active), len(active)), -torch.inf).triu(1)[None, None]
        turns = decoder.rotary_emb(hidden, torch.tensor(active)[None])
        states = layer(hidden[active][None], attention_mask=causal, position_embeddings=turns)
        hidden[active] = states[0]
    return model.lm_head(decoder.norm(hidden[prompt - 1 :]))


@torch.no_grad()
@pytest.mark.parametrize("text", ["full", "linear:max=3,min=2,warmup=1,horizon=3"])
def test_an_added_family_is_forced_at_its_schedule(
    added: tuple[Path, OlmoForCausalLM], text: str
) -> None:
    directory, plain = added
    schedule = parse_schedule(text, num_layers=SIZES["num_hidden_layers"])
    dataset = ExampleDataset(ROWS)
    batch = collate([dataset[index] for index in range(len(ROWS))])
    logits = load_skip_model(directory, "olmo").eval()(**batch, schedule=schedule).logits
    expected = torch.cat([literal(plain, row, schedule) for row in ROWS])
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


def test_weights_that_transformers_refuses_to_read_are_an_error_with_its_words(
    added: tuple[Path, OlmoForCausalLM],
) -> None:
    path = added[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": 3}))
    with pytest.raises(CheckpointError, match=r"can't be read by transformers \(Strict"):
        load_skip_model(added[0], "olmo")
