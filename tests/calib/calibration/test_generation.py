"""Calibrate on generated completions: same tokens and schedule, or a refusal."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calibrations import SCHEDULES
from command_line import run
from recorded_events import RecordedEvents

from skipdec.calib.calibration.calibration import run_calibration
from skipdec.calib.calibration.config import CalibrationConfig
from skipdec.calib.calibration.plan import CalibrationPlan, plan_calibration
from skipdec.engines.errors import SkipDecError
from skipdec.engines.host.events import Events
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.generator import Generator
from skipdec.runtime.tokens.sampling import SamplingParams

SMALL = {"num_examples": 4, "num_held_out": 2, "num_by_layer": 0}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    texts = [{"prompt": f"{name}:", "completion": name[::-1]} for name in ("ant", "bee", "tit")]
    path.write_text("\n".join(json.dumps(text) for text in texts * 3))
    return path


def plan_with(bundle: Path, rows: Path, **options: Any) -> CalibrationPlan:  # noqa: ANN401
    values = {"model": str(bundle.parent / "checkpoint"), "output": Path("new.json"), **options}
    config = {"data": {"path": rows}, "generate_with": bundle, "generate_tokens": 9}
    return plan_calibration(CalibrationConfig(**(SMALL | config | values)))


@pytest.mark.parametrize("schedule", SCHEDULES[:2])
def test_ranges_match_those_of_generated_completions(
    schedule: str, bundle: Path, rows: Path
) -> None:
    plan = plan_with(bundle, rows, schedule=schedule)
    events = RecordedEvents()
    report = run_calibration(plan, events)
    params = SamplingParams(temperature=0.0, max_tokens=9)
    with Generator.open(bundle) as generator:
        prompts = [text.prompt_token_ids for text in plan.observed]
        results = generator.generate(prompts, params, schedule=schedule)
    observed = tuple(
        replace(text, completion_token_ids=result.outputs[0].token_ids)
        for text, result in zip(plan.observed, results, strict=True)
    )
    literal = run_calibration(replace(plan, writer=None, observed=observed), Events())
    assert report.products == literal.products
    assert report.loss == literal.loss
    assert events.counts["generating"] == events.totals["generating"] == 4
    assert report.generated is not None
    assert report.generated.tokens == sum(len(text.completion_token_ids) for text in observed)
    given = run_calibration(replace(plan, writer=None), Events())
    assert given.products != report.products
    assert given.loss.float32 == report.loss.float32


def test_completions_depend_on_the_schedule(bundle: Path, rows: Path) -> None:
    full, skipping = (
        run_calibration(plan_with(bundle, rows, schedule=schedule), Events()).products
        for schedule in SCHEDULES[:2]
    )
    assert full != skipping


def test_quantised_bundle_can_generate_completions(
    bundle: Path, rows: Path, tmp_path: Path
) -> None:
    output = tmp_path / "int8"
    model = str(bundle.parent / "checkpoint")
    export(ExportConfig(model=model, output=output, quantize="int8", verify=False))
    report = run_calibration(plan_with(output, rows, model=model), Events())
    assert report.generated is not None
    assert report.generated.bundle == output


def test_memory_is_bounded_by_the_longest_possible_completion(bundle: Path, rows: Path) -> None:
    plan = plan_with(bundle, rows, max_tokens=45)  # 30 for the ranges, 14 each
    assert len(plan.observed) == 2
    assert "texts are left out" in plan.warnings[-1]


def other_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def other_tokenizer(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))


def other_structure(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"activation_function": "relu"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_weights, "its weights are not the checkpoint's; give a bundle"),
        (other_tokenizer, "its tokenizer is not the checkpoint's; give a bundle"),
        (other_structure, "activation_function is 'gelu' in the bundle, 'relu' in the checkpoint"),
    ],
)
def test_a_bundle_of_another_checkpoint_is_refused(
    change: Any,  # noqa: ANN401
    message: str,
    bundle: Path,
    rows: Path,
    tmp_path: Path,
) -> None:
    model = shutil.copytree(bundle.parent / "checkpoint", tmp_path / "model")
    change(model)
    with pytest.raises(SkipDecError, match="--generate-with") as caught:
        plan_with(bundle, rows, model=str(model))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"generate_tokens": 61},
            "the prompt has 5 tokens and 61 more would be generated; the bundle holds 64",
        ),
        ({"generate_with": None}, "generate_tokens is 9 but completions come from the data"),
        ({"generate_with": Path("none")}, "none"),
    ],
)
def test_impossible_generation_is_refused(
    options: dict[str, Any], message: str, bundle: Path, rows: Path
) -> None:
    with pytest.raises(SkipDecError) as caught:
        plan_with(bundle, rows, **options)
    assert message in str(caught.value)


def test_the_command_names_the_generating_bundle(bundle: Path, rows: Path, tmp_path: Path) -> None:
    arguments = [bundle.parent / "checkpoint", "--data", rows, "--generate-with", bundle]
    arguments += ["--generate-tokens", 5, "--examples", 3, "--held-out", 2, "--by-layer", 0]
    output = tmp_path / "ranges.json"
    result = run("calibrate", *arguments, "-o", output)
    assert result.exit_code == 0, result.stderr
    assert f"written by {bundle}, at most 5 each" in result.stdout.replace("\n", " ")
    assert "completions by bundle" in result.stderr
    assert output.exists()
