"""Rounded checkpoints have a true report, export as written, and are published safely."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrations import SCHEDULES, literal_inputs, literal_loss, plan_on_random_examples
from fixture_types import Checkpoints
from recorded_events import RecordedEvents
from safetensors.torch import load_file
from tiny_models import tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from skipdec.calib.rounding.config import RoundingConfig
from skipdec.calib.rounding.files import CheckpointFiles
from skipdec.calib.rounding.rounding import RoundingPlan, run_rounding
from skipdec.engines.errors import CheckpointError
from skipdec.engines.host.events import Events
from skipdec.engines.manifest import EngineKind
from skipdec.exporter.architecture.architecture import engine_parameters
from skipdec.exporter.architecture.weights import engine_name
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.quantization.linear import LinearBlockQuantizer
from skipdec.exporter.quantization.quantize import BlockQuantizer, WeightQuantizer
from skipdec.runtime.generator import Generator

Reference = Callable[[str], PreTrainedModel]

SKIPPING = SCHEDULES[1]


def rounding_plan(
    checkpoint: Path,
    output: Path,
    schedule: str = "full",
    **options: Any,  # noqa: ANN401
) -> RoundingPlan:
    config = RoundingConfig(
        model=str(checkpoint),
        data={"path": Path("rows.jsonl")},
        output=output,
        **{"block_size": 16, "batch_tokens": 24, "schedule": schedule, **options},
    )
    return plan_on_random_examples(RoundingPlan, config, schedule)


def layer_products(checkpoint: Path) -> dict[tuple[str, str], np.ndarray]:
    """Return the stored weights [K, N] of all layers' products, by engine and name."""
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint)))
    return {
        (engine_name(EngineKind.LAYER, index), parameter.name): parameter.load(opened.reader)
        for index in range(opened.model.num_layers)
        for parameter in engine_parameters(EngineKind.LAYER, opened.model, index)
        if parameter.is_product
    }


def test_the_exported_bundle_has_the_reported_loss(checkpoint: Checkpoints, tmp_path: Path) -> None:
    plan = rounding_plan(checkpoint("untied"), tmp_path / "rounded", SKIPPING)
    events = RecordedEvents()
    report = run_rounding(plan, events)
    assert events.done["rounding"] == [*(f"layer_{index:03d}" for index in range(6)), "head"]
    config = ExportConfig(
        model=str(tmp_path / "rounded"),
        output=tmp_path / "bundle",
        quantize="int4",
        block_size=16,
        accuracy_level=0,  # activations in float32, as in the report
        verify=False,
    )
    export(config)
    with Generator.open(config.output, threads=1) as generator:
        scores = generator.score(
            [list(each.prompt_token_ids) for each in plan.held_out],
            [list(each.completion_token_ids) for each in plan.held_out],
            schedule=plan.schedule,
        )
    losses = [-value for score in scores for value in score.logprobs]
    assert np.mean(losses) == pytest.approx(report.loss.rounded, abs=2e-4)
    assert abs(report.loss.nearest - report.loss.rounded) > 1e-3


@pytest.mark.parametrize(
    "structure", ["pre_norm", "post_norm", "no_bias", "no_final_norm", "llama"]
)
def test_the_written_weights_have_the_reported_loss(
    structure: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    plan = rounding_plan(checkpoint(structure), tmp_path / "rounded", SKIPPING)
    report = run_rounding(plan, Events())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "rounded", local_files_only=True).eval()
    tied = model.lm_head.weight.detach().numpy()  # [V, K]; export rounds it to nearest
    head = torch.from_numpy(BlockQuantizer(4, 16).dequantized(tied.T).T)
    model.lm_head.weight = torch.nn.Parameter(head)
    loss = literal_loss(model, plan.held_out, plan.schedule)
    assert report.loss.rounded == pytest.approx(loss, rel=1e-5)
    assert report.head == "nearest"


@pytest.mark.parametrize("schedule", [SCHEDULES[0], SKIPPING])
def test_nearest_errors_and_exact_loss_match_a_literal_forward_pass(
    schedule: str, checkpoint: Checkpoints, reference_model: Reference, tmp_path: Path
) -> None:
    plan = rounding_plan(checkpoint("untied"), tmp_path / "rounded", schedule)
    report = run_rounding(plan, Events())
    model = reference_model("untied")
    literal = literal_inputs(model, plan.held_out, plan.schedule)
    assert report.loss.float32 == pytest.approx(
        literal_loss(model, plan.held_out, plan.schedule), rel=1e-5
    )
    assert {(each.engine, each.weight) for each in report.products} == literal.keys()
    weights = layer_products(checkpoint("untied"))
    for product in report.products[:-1]:
        key = (product.engine, product.weight)
        weight = torch.from_numpy(weights[key].copy())
        error = literal[key] @ torch.from_numpy(
            BlockQuantizer(4, 16).dequantized(weights[key]) - weights[key]
        )
        bare = literal[key] @ weight
        assert product.tokens == len(bare)
        # Reported outputs contain their biases, which are small.
        assert product.nearest_error == pytest.approx(float(error.norm() / bare.norm()), rel=0.1)


def test_every_product_beats_nearest_on_the_observed_texts(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    plan = rounding_plan(checkpoint("untied"), tmp_path / "rounded", SKIPPING)
    report = run_rounding(replace(plan, held_out=plan.observed), Events())
    assert len(report.products) == 6 * 4 + 1
    for product in report.products:
        assert product.rounded_error < 0.8 * product.nearest_error, product


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("target", "quantizer"),
    [
        pytest.param("onnxruntime", BlockQuantizer(4, 16), id="MatMulNBits"),
        pytest.param("onnxruntime", BlockQuantizer(4, 16, "bfloat16"), id="BlockLinear4"),
        pytest.param("tensorrt", LinearBlockQuantizer(4, 16, "float16"), id="tensorrt"),
    ],
)
def test_export_does_not_change_the_written_weights(
    target: str, quantizer: WeightQuantizer, dtype: torch.dtype, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    tiny_model("untied").to(dtype).save_pretrained(source)
    output = tmp_path / "rounded"
    run_rounding(rounding_plan(source, output, target=target), Events())
    before = layer_products(source)
    for key, stored in layer_products(output).items():
        assert stored.dtype == str(dtype).removeprefix("torch.")
        assert not np.array_equal(stored, quantizer.dequantized(before[key]))
        assert np.array_equal(quantizer.dequantized(stored).astype(stored.dtype), stored)


def test_transformers_reads_written_bfloat16_weights_unchanged(
    tmp_path: Path,
) -> None:
    source, output = tmp_path / "source", tmp_path / "rounded"
    tiny_model("untied").to(torch.bfloat16).save_pretrained(source)
    run_rounding(rounding_plan(source, output), Events())
    model = AutoModelForCausalLM.from_pretrained(output, local_files_only=True, dtype="auto")
    (stored,) = output.glob("model-layer_000.safetensors")
    name = "model.decoder.layers.0.fc1.weight"
    assert torch.equal(model.state_dict()[name], load_file(stored)[name])


@pytest.mark.parametrize("structure", ["post_norm", "untied", "qwen3"])
def test_transformers_reads_the_result_and_other_tensors_are_unchanged(
    structure: str, checkpoint: Checkpoints, reference_model: Reference, tmp_path: Path
) -> None:
    run_rounding(rounding_plan(checkpoint(structure), tmp_path / "rounded"), Events())
    model, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "rounded", output_loading_info=True, local_files_only=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    before, after = reference_model(structure).state_dict(), model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    products = {name for name in before if ".layers." in name and before[name].dim() == 2}
    assert changed == products | ({"lm_head.weight"} if structure != "post_norm" else set())


def test_a_tied_head_can_be_untied(checkpoint: Checkpoints, tmp_path: Path) -> None:
    plan = rounding_plan(checkpoint("pre_norm"), tmp_path / "rounded", untie_head=True)
    report = run_rounding(plan, Events())
    assert (report.head, report.products[-1].weight) == ("gptq", "lm_head.weight")
    assert (
        json.loads((tmp_path / "rounded" / "config.json").read_text())["tie_word_embeddings"]
        is False
    )
    reader = open_checkpoint(CheckpointSource(model=str(tmp_path / "rounded"))).reader
    original = open_checkpoint(CheckpointSource(model=str(checkpoint("pre_norm")))).reader
    embedding, head = "decoder.embed_tokens.weight", "lm_head.weight"
    assert np.array_equal(reader.read(embedding), original.read(embedding))
    assert not np.array_equal(reader.read(head), reader.read(embedding))


def test_a_non_finite_activation_leaves_no_files(tmp_path: Path) -> None:
    model = tiny_model("pre_norm")
    with torch.no_grad():
        model.model.decoder.layers[2].self_attn_layer_norm.bias[3] = torch.inf
    model.save_pretrained(tmp_path / "source")
    plan = rounding_plan(tmp_path / "source", tmp_path / "rounded")
    with pytest.raises(CheckpointError, match=r"layer_002 .*self_attn.qkv_proj.weight is NaN or"):
        run_rounding(plan, Events())
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_prompt_template_and_other_small_files_are_copied(tmp_path: Path) -> None:
    names = {"generation_config.json", "tokenizer.model", "prompt_template.json"}
    source, rounded = tmp_path / "source", tmp_path / "rounded"
    for directory in (source, rounded):
        directory.mkdir()
    for name in (*names, "README.md"):
        (source / name).write_text(name)
    CheckpointFiles(rounded).finish(source, {}, {})
    assert all((rounded / name).read_text() == name for name in names)
    assert not (rounded / "README.md").exists(), "the model card describes other weights"
