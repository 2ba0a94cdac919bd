"""LLaMA and its relatives run at a schedule, are tuned and exported, and keep their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ragged_batches import ROWS, batch_of
from reference import reference_logits
from safetensors.torch import load_file
from text_bundles import CHAT_TEMPLATE
from tiny_models import LLAMA_BASE, LLAMA_RELATIVES, LLAMA_STRUCTURES, random_model
from torch import Tensor
from transformers import PreTrainedModel

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.family import TUNING_FAMILIES, load_skip_model
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import CheckpointError
from skipdec.exporter.architecture.architecture import ARCHITECTURES
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.tokenizer import byte_level_tokenizer
from skipdec.exporter.config import CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.generator import Generator
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.sampling import SamplingParams

SKIPPING = "linear:max=3,min=2,warmup=1,horizon=3"
BOTTOM = "linear:max=3,min=1,warmup=0,horizon=3,placement=bottom"
# Each value is what a config.json changes in LLAMA_BASE.
MEMBERS: dict[str, dict[str, Any]] = {
    "llama": LLAMA_STRUCTURES["llama"],
    "qwen3": LLAMA_STRUCTURES["qwen3"],
    **LLAMA_RELATIVES,
}


def small(member: str, **changes: Any) -> PreTrainedModel:  # noqa: ANN401
    base = {**LLAMA_BASE, "num_hidden_layers": 4, "model_type": member}
    return random_model({**base, **MEMBERS[member], **changes})


def literal(model: PreTrainedModel, row: TokenisedExample, schedule: ExitSchedule) -> Tensor:
    """Return the logits [G, V] that predict each token of the completion."""
    fed = row.completion_token_ids[:-1]
    if schedule.is_full:
        tokens = torch.tensor([[*row.prompt_token_ids, *fed]])
        return model(tokens).logits[0, len(row.prompt_token_ids) - 1 :]
    plan = schedule.plan
    return reference_logits(model, row.prompt_token_ids, fed, lambda index: plan(index).layers)


def test_every_family_that_can_be_exported_can_be_tuned() -> None:
    assert set(TUNING_FAMILIES) == set(ARCHITECTURES) == {"opt", *MEMBERS}


@torch.no_grad()
@pytest.mark.parametrize("text", ["full", SKIPPING, BOTTOM])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_ragged_batch_equals_transformers_layers(member: str, text: str, tmp_path: Path) -> None:
    model = small(member)
    model.save_pretrained(tmp_path)
    schedule = parse_schedule(text, num_layers=4)
    batch = batch_of(ROWS)
    logits = load_skip_model(tmp_path, member).eval()(**batch, schedule=schedule).logits
    expected = torch.cat([literal(model, row, schedule) for row in ROWS])
    torch.testing.assert_close(logits, expected, rtol=0, atol=5e-5)


def test_a_config_that_transformers_refuses_is_quoted_in_the_error(tmp_path: Path) -> None:
    small("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": 3}))
    with pytest.raises(CheckpointError, match=r"can't be read by transformers \(Strict"):
        load_skip_model(tmp_path, "llama")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"name[{name}]", "completion": f"{name}, a pub"} for name in "ABCDEFGH"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tuned(data: Path, name: str, **options: Any) -> TuningReport:  # noqa: ANN401
    values = {"schedule": SKIPPING, "max_steps": 3, "batch_size": 4, "device": "cpu"}
    report = tune(
        TuneConfig(**{**values, "data": {"path": data}, "output": data.with_name(name), **options})
    )
    assert report is not None
    return report


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a llama with a vocabulary of bytes, a chat template and generation settings."""
    directory = tmp_path / "start"
    small("llama", vocab_size=300).save_pretrained(directory)
    model = open_checkpoint(CheckpointSource(model=str(directory))).model
    tokenizer = byte_level_tokenizer(model)
    assert tokenizer is not None
    (directory / "tokenizer.json").write_bytes(tokenizer)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    # Published checkpoints have these settings, which transformers refuses to write.
    settings = {"eos_token_id": [2, 7], "temperature": 0.6, "top_p": 0.9}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    return directory


def test_adapters_change_every_projection_and_files_are_copied(
    checkpoint: Path, data: Path
) -> None:
    turns = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "A pub"}]
    data.write_text((json.dumps({"messages": turns}) + "\n") * 8)
    report = tuned(data, "tuned", model=str(checkpoint), lora=2)
    assert report.trained_parameters < report.parameters / 4
    before, after = (
        load_file(directory / "model.safetensors") for directory in (checkpoint, report.output)
    )
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    for name in ("chat_template.jinja", "generation_config.json"):
        assert (report.output / name).read_bytes() == (checkpoint / name).read_bytes()
    assert "| prompt template | the chat template |" in (report.output / "README.md").read_text()
    first, last = (
        json.loads((directory / "config.json").read_bytes())
        for directory in (checkpoint, report.output)
    )
    assert first["rope_parameters"] == last["rope_parameters"]
    assert first["rope_parameters"]["rope_type"] == "llama3"
    opened = open_checkpoint(CheckpointSource(model=str(report.output)))
    assert opened.model.end_token_ids == (2, 7)
    assert opened.tuned_schedule == parse_schedule(SKIPPING, num_layers=4)


def test_a_fresh_model_is_tuned_exported_and_writes_the_data(data: Path, tmp_path: Path) -> None:
    sizes = "family=qwen3,layers=4,width=32,heads=4,kv_heads=2,head_dim=16,positions=48"
    options = {"vocab_size": 300, "max_steps": 12, "learning_rate": 5e-3, "logging_steps": 3}
    report = tuned(data, "fresh", from_scratch=sizes, **options)
    assert report.losses[-1].loss < report.losses[0].loss
    assert "QWEN3, 4 layers of width 32" in (report.output / "README.md").read_text()
    bundle = tmp_path / "bundle"
    export(ExportConfig(model=str(report.output), output=bundle, verify=False))
    checkpoint = load_skip_model(report.output, "qwen3").eval()
    with Generator.open(bundle, threads=1) as generator:
        (output,) = generator.generate(["name[A]"], SamplingParams(temperature=0.0, max_tokens=6))
        schedule = generator.bundle_schedule
    (written,) = output.outputs
    row = TokenisedExample(tuple(output.prompt_token_ids), written.token_ids, "")
    batch = batch_of([row])
    with torch.no_grad():
        chosen = checkpoint(**batch, schedule=schedule).logits.argmax(-1)
    np.testing.assert_array_equal(chosen.numpy(), written.token_ids)
