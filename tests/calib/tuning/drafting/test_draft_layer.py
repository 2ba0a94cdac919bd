"""Train a draft layer: the model is unchanged, drafts improve, files fit the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Checkpoints
from mutations import digests
from ragged_batches import ROWS, batch_of
from recorded_events import RecordedEvents
from safetensors.torch import load_file
from tiny_models import STRUCTURES
from torch.nn import functional as F
from transformers import TrainingArguments

from skipdec.calib.tuning.batches import ExampleDataset, collate
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.drafting.layer import DraftLayer
from skipdec.calib.tuning.drafting.trainer import DraftLayerTrainer
from skipdec.calib.tuning.family import load_skip_model
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.engines.host.events import Events
from skipdec.engines.host.signals import Interruption
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource

Settings = Callable[..., TuneConfig]

NAMES = {"draft_layer.json", "draft_layer.safetensors"}


def trainer(structure: str, checkpoint: Checkpoints, directory: Path) -> Any:  # noqa: ANN401
    model = load_skip_model(checkpoint(structure), "opt")
    return DraftLayerTrainer(
        interruption=Interruption(),
        model=DraftLayer(model, range(model.config.vocab_size)),
        args=TrainingArguments(str(directory), use_cpu=True, report_to="none", disable_tqdm=True),
        train_dataset=ExampleDataset(ROWS),
        data_collator=collate,
    )


@pytest.mark.parametrize("structure", STRUCTURES)
def test_only_the_draft_layer_has_gradients_and_it_learns(
    structure: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    made = trainer(structure, checkpoint, tmp_path)
    layer: DraftLayer = made.model
    before = {name: each.clone() for name, each in layer.base.state_dict().items()}
    batch = batch_of(ROWS)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=5e-3)
    losses = []
    for _ in range(8):
        loss = made.compute_loss(layer.train(), batch)
        optimizer.zero_grad()
        loss.backward()
        assert all(each.grad is not None and each.grad.any() for each in layer.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(each.grad is None for each in layer.base.parameters())
    torch.testing.assert_close(layer.base.state_dict(), before, rtol=0, atol=0)
    trained = sum(each.numel() for each in layer.parameters())
    assert sum(each.numel() for each in layer.state_dict().values()) == trained
    assert trained < sum(each.numel() for each in layer.base.parameters())


@torch.no_grad()
def test_the_loss_is_the_divergence_of_guesses_from_full_depth(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    made = trainer("post_norm", checkpoint, tmp_path)
    layer, batch = made.model.eval(), batch_of(ROWS)
    reading = layer.read(batch["input_ids"][:, :-1])
    wanted = layer.base.head(reading.top).log_softmax(-1)  # [B, S-1, V]
    outputs = list(layer.outputs(reading, batch["prompt_lengths"], 3))
    total, count = 0.0, 0
    for guess, output in enumerate(outputs):
        for row, example in enumerate(ROWS):
            first = len(example.prompt_token_ids)
            end = first + len(example.completion_token_ids) - 1
            for place in range(first + guess, end):
                logits = layer.logits(output[row, place][None])[0].log_softmax(-1)
                far = F.kl_div(logits, wanted[row, place], reduction="sum", log_target=True)
                total += 0.5**guess / 1.75 * float(far)
                count += guess == 0
    actual = made.compute_loss(layer, batch)
    assert actual.item() == pytest.approx(total / count, rel=1e-4)


def test_drafts_are_accepted_more_often_and_full_depth_is_unchanged(
    settings: Settings, toy_model: Path, tmp_path: Path
) -> None:
    before = digests(toy_model)
    events = RecordedEvents()
    report = tune(settings(draft_layer=True, max_steps=160), events)
    assert report is not None
    assert report.drafts is not None
    start, tuned = report.drafts.start, report.drafts.tuned
    assert start is not None
    assert tuned is not None
    assert 6 - tuned.held_of_6 < (6 - start.held_of_6) / 2
    assert tuned.first >= start.first
    for stage in ("fitting the draft layer's input", "writing held-out texts"):
        assert 0 < events.counts[stage] == events.totals[stage]
    assert report.validation is None, "the model's losses are unchanged"
    assert digests(toy_model) == before
    assert report.trained_parameters < report.parameters / 2
    output = tmp_path / "tuned"
    assert set(digests(output)) == NAMES
    assert not list(tmp_path.glob(".*"))
    assert len({path.stat().st_mode for path in output.iterdir()}) == 1, "equal permissions"
    opened = open_checkpoint(CheckpointSource(model=str(toy_model)))
    document = json.loads((output / "draft_layer.json").read_text())
    assert document == {
        "format": 2,
        "reads": [2, 2, 4],
        "token_ids": document["token_ids"],
        "model": {
            "hidden_size": 32,
            "ffn_dim": 128,
            "num_attention_heads": 2,
            "num_hidden_layers": 4,
            "vocab_size": opened.model.vocab_size,
            "sha256": opened.content,
        },
        "training": {"steps": 160, "examples": 8, "learning_rate": 1e-2, "seed": 0},
        "acceptance": tuned.model_dump(),
    }
    kept = document["token_ids"]
    assert kept == sorted(kept)
    assert len(kept) == opened.model.vocab_size // 2
    weights = load_file(output / "draft_layer.safetensors")
    stored = load_file(toy_model / "model.safetensors")
    prefix = "model.decoder.layers.0."
    shapes = {
        f"layer.{name.removeprefix(prefix)}": list(tensor.shape)
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
    assert {name: list(tensor.shape) for name, tensor in weights.items()} == shapes | {
        **{f"states.norms.{index}.weight": [32] for index in range(3)},
        **{f"entry.norms.{index}.weight": [32] for index in range(2)},
        "states.product.weight": [32, 96],
        "entry.product.weight": [32, 64],
        "head.decoder.final_layer_norm.weight": [32],
        "head.decoder.final_layer_norm.bias": [32],
        "head.lm_head.weight": [len(kept), 32],
    }


def test_the_written_layer_has_the_reported_acceptance(settings: Settings, toy_model: Path) -> None:
    """Load the float16 file instead of the trained layer and compare its acceptance."""
    from skipdec.calib.tuning.drafting.acceptance import (
        greedy_texts,
        held_by_draft_layer,
        measure_acceptance,
    )
    from skipdec.calib.tuning.plan import plan_tuning

    config = settings(draft_layer=True, save_dtype="float16", bf16=True)
    report = tune(config)
    assert report is not None
    assert report.drafts is not None
    weights = load_file(config.output / "draft_layer.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    facts = json.loads((config.output / "draft_layer.json").read_text())
    model = load_skip_model(toy_model, "opt").eval()
    layer = DraftLayer(model, facts["token_ids"])
    layer.load(weights)
    plan = plan_tuning(config.updated(force=True))
    texts = greedy_texts(model, plan, Events())
    measured = measure_acceptance(model, texts, held_by_draft_layer(layer.eval()))
    assert measured == report.drafts.tuned


def test_a_draft_layer_is_trained_further(settings: Settings) -> None:
    first = tune(settings("first", draft_layer=True, max_steps=2))
    events = RecordedEvents()
    more = settings("more", draft_layer=True, start_layer=first.output, max_steps=160)
    report = tune(more, events)
    assert report.drafts.start == first.drafts.tuned
    assert 6 - report.drafts.tuned.held_of_6 < (6 - first.drafts.tuned.held_of_6) / 2
    assert "fitting the draft layer's input" not in events.totals


def test_a_layer_that_is_trained_further_keeps_its_tokens(
    settings: Settings, toy_rows: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half.jsonl"
    half.write_text("".join(toy_rows.read_text().splitlines(keepends=True)[:4]))

    def kept(name: str, **options: object) -> list[int]:
        output = tune(settings(name, draft_layer=True, max_steps=1, **options)).output
        ids: list[int] = json.loads((output / "draft_layer.json").read_text())["token_ids"]
        return ids

    whole = kept("whole")
    assert kept("half", data={"path": half}) != whole
    assert kept("more", data={"path": half}, start_layer=tmp_path / "whole") == whole


def test_a_start_layer_of_another_model_is_refused(
    settings: Settings, toy_model: Path, tmp_path: Path
) -> None:
    tune(settings("first", draft_layer=True, max_steps=1))
    path = tmp_path / "first" / "draft_layer.json"
    document = json.loads(path.read_text())
    document["model"]["sha256"] = "0" * 64
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="was trained for weights of SHA-256 0000"):
        tune(settings("second", draft_layer=True, start_layer=path.parent))
    with pytest.raises(UsageError, match="allowed: a directory that 'skipdec tune --draft-layer'"):
        tune(settings("second", draft_layer=True, start_layer=toy_model))


def test_a_draft_layer_has_a_learning_rate_of_its_own(settings: Settings) -> None:
    given = dict(settings(draft_layer=True))
    del given["learning_rate"]
    assert TuneConfig(**given).learning_rate == 2e-3
    assert TuneConfig(**given, learning_rate=1e-4).learning_rate == 1e-4
    assert TuneConfig(**given | {"draft_layer": False, "schedule": "2x"}).learning_rate == 1e-4


def test_acceptance_needs_held_out_data(settings: Settings) -> None:
    report = tune(settings(draft_layer=True, validation=None, max_steps=1))
    assert report is not None
    assert any("--validation FILE names held-out data" in warning for warning in report.warnings)
    document = json.loads((report.output / "draft_layer.json").read_text())
    assert document["acceptance"] == {}


def test_only_a_draft_layer_is_replaced_by_force(
    settings: Settings, toy_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"draft_layer": True, "max_steps": 1}
    tune(settings(**options))
    with pytest.raises(UsageError, match="pass --force"):
        tune(settings(**options))
    output = settings(**options).output
    before = digests(output)

    def fail(*_: object) -> None:
        raise SkipDecError("disk", "failed while the second file was written")

    with monkeypatch.context() as patch:
        patch.setattr("skipdec.calib.tuning.subjects.write_file", fail)
        with pytest.raises(SkipDecError, match="second file"):
            tune(settings(**options, force=True, seed=1))
    assert digests(output) == before, "an error keeps the old result"
    with pytest.raises(UsageError, match="is not a draft layer"):
        tune(settings(**options, force=True).updated(output=toy_model))


def test_sharding_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UsageError, match="without FSDP"):
        tune(settings(draft_layer=True))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schedule": "2x"}, "schedule is '2x'; draft_layer trains at full depth"),
        ({"mixture": ("2x",)}, "mixture changes the depth"),
        ({"lora": 2}, "lora trains the model, which draft_layer freezes"),
        ({"distill": 0.5}, "distill trains the model"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing trains the model"),
        (
            {"model": None, "from_scratch": "layers=4,width=32,heads=2"},
            "from_scratch trains the model",
        ),
        ({"draft": {"layers": "ends:3"}}, "give one of them"),
        ({"draft_layer": False}, "schedule is missing; give one"),
        ({"draft_layer": False, "start_layer": "a"}, "is trained further with draft_layer; add it"),
        ({"draft_layer": False, "draft": {"layers": "ends:2", "weight": 0}}, "above 0"),
        ({"draft_layer": False, "draft": {"layers": "ends:2"}, "mixture": ("2x",)}, "mixture"),
    ],
)
def test_options_that_contradict_drafts_are_named(
    changes: dict[str, Any], problem: str, settings: Settings
) -> None:
    with pytest.raises(UsageError) as caught:
        settings(**{"draft_layer": True, **changes})
    assert problem in str(caught.value)
