"""Migration factors are measured at scheduled depth and help with outlier channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from calibrations import SCHEDULES, literal_inputs, plan_of
from command_line import run
from fixture_types import Checkpoints
from outliers import plant_outliers
from transformers import OPTForCausalLM

from skipdec.calib.calibration.calibration import CalibrationReport, run_calibration
from skipdec.calib.calibration.migration import smoothing_factors
from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.host.events import Events
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.quantization.ranges import ActivationRanges

pytestmark = pytest.mark.usefixtures("verified_here")

SKIPPING = SCHEDULES[1]


def test_factors_balance_activations_and_weights() -> None:
    activations, weights = np.float32([16, 1, 0, 9]), np.float32([0.25, 1, 1, 0])
    assert smoothing_factors(activations, weights, 0.5) == [8.0, 1.0, 1.0, 1.0]
    assert smoothing_factors(activations, weights, 1.0) == [16.0, 1.0, 1.0, 1.0]
    assert smoothing_factors(activations, weights, 0.0) == [4.0, 1.0, 1.0, 1.0]


def test_channels_are_observed_at_scheduled_depth(
    checkpoint: Checkpoints, reference_model: Callable[[str], OPTForCausalLM]
) -> None:
    plan = plan_of(checkpoint("pre_norm"), SKIPPING, migrate=0.5)
    report = run_calibration(plan, Events())
    assert report.migration is not None
    factors = report.migration.factors
    model = reference_model("pre_norm")
    literal = literal_inputs(model, plan.observed, plan.schedule)
    for index, layer in enumerate(model.model.decoder.layers):
        name = f"layer_{index:03d}"
        for weight in ("fc1", "fc2"):
            inputs = literal[name, f"{weight}.weight"].abs().amax(0).numpy()
            own = layer.get_submodule(weight).weight.detach().abs().amax(0).numpy()
            expected = smoothing_factors(inputs, own, 0.5)
            np.testing.assert_allclose(factors.of(name)[f"{weight}.weight"], expected, rtol=2e-3)
    for product in report.products:
        rows = literal[product.engine, product.weight]
        migrated = rows / torch.tensor(factors.of(product.engine)[product.weight])
        assert product.range == pytest.approx(float(migrated.abs().max()), rel=1e-3)


@pytest.mark.parametrize(
    "structure", ["pre_norm", "post_norm", "no_bias", "untied", "llama", "qwen3"]
)
def test_migration_does_not_change_float_losses(structure: str, checkpoint: Checkpoints) -> None:
    plain = run_calibration(plan_of(checkpoint(structure), SKIPPING), Events())
    migrated = run_calibration(plan_of(checkpoint(structure), SKIPPING, migrate=0.5), Events())
    assert migrated.migration is not None
    assert migrated.loss.float32 == pytest.approx(plain.loss.float32, rel=1e-5)
    # Inputs that differ in their last bits may round to neighbouring codes.
    assert migrated.migration.static_without == pytest.approx(plain.loss.static, rel=5e-4)
    assert migrated.loss.static != plain.loss.static
    left_out = migrated.migration.left_out
    assert ("fc1.weight" in left_out) == (structure in ("post_norm", "no_bias"))
    assert ("self_attn.o_proj.weight" in left_out) == (structure == "llama")


@pytest.fixture(scope="module")
def planted(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_outliers(checkpoint("pre_norm"), tmp_path_factory.mktemp("planted") / "model")


def test_migration_reduces_the_loss_from_planted_outliers(planted: Path) -> None:
    plan = plan_of(planted)
    held_out = own_completions(OPTForCausalLM.from_pretrained(planted), plan.held_out)
    without = run_calibration(replace(plan, held_out=held_out), Events())
    migrating = plan_of(planted, migrate=0.5)
    report = run_calibration(replace(migrating, held_out=held_out), Events())
    assert report.migration is not None
    assert report.loss.float32 == pytest.approx(without.loss.float32, rel=1e-4)
    assert report.migration.static_without == pytest.approx(without.loss.static, rel=1e-4)

    def errors(found: CalibrationReport) -> float:
        first = ("self_attn.qkv_proj.weight", "fc1.weight")
        return max(each.output_error for each in found.products if each.weight in first)

    def increase(found: CalibrationReport) -> float:
        return found.loss.static["int8"] - found.loss.float32

    assert errors(report) < 0.1 * errors(without)
    assert increase(report) < 0.2 * increase(without)


def own_completions(
    model: OPTForCausalLM, texts: Sequence[TokenisedExample]
) -> tuple[TokenisedExample, ...]:
    """Return ``texts`` with 16 tokens that ``model`` predicts confidently, so that errors show."""
    written = []
    for text in texts:
        ids = torch.tensor([text.prompt_token_ids])
        options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
        ids = model.generate(ids, **options)[0, ids.shape[1] :]
        written.append(replace(text, completion_token_ids=tuple(ids.tolist())))
    return tuple(written)


@pytest.mark.slow
def test_an_int8_bundle_passes_with_the_migration_file(planted: Path, tmp_path: Path) -> None:
    report = run_calibration(plan_of(planted, migrate=0.5), Events())
    path = tmp_path / "ranges.json"
    path.write_text(report.ranges.model_dump_json(exclude_none=True))
    assert ActivationRanges.from_json(path.read_bytes(), "ranges.json") == report.ranges
    output = tmp_path / "bundle"
    config = ExportConfig(model=str(planted), output=output, quantize="int8", ranges=path)
    verification = export(config).verification  # fails without the file: test_divergence.py
    assert verification is not None
    assert verification.warnings == []
    manifest = EngineBundle.open(output).manifest
    assert manifest.source["migration"] == report.migration.factors.digest  # type: ignore[union-attr]


@pytest.mark.parametrize("alpha", ["-0.1", "1.1", "nan"])
def test_alpha_outside_0_to_1_is_refused(alpha: str, planted: Path, tmp_path: Path) -> None:
    arguments = [planted, "--data", "rows.csv", "-o", tmp_path / "new.json", "--migrate", alpha]
    result = run("calibrate", *arguments)
    assert result.exit_code == 2
    assert "migrate is" in result.stderr
