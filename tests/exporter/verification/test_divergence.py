"""A quantised bundle passes only if its distributions stay near the checkpoint's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from fixture_types import Checkpoints
from outliers import plant_outliers
from recorded_events import RecordedEvents

from skipdec.engines.errors import VerificationError
from skipdec.engines.manifest import PrecisionSpec
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.verification.report import EngineCheck, TokenCheck, VerificationReport
from skipdec.exporter.verification.tolerance import divergence, divergence_bound, remedies

pytestmark = pytest.mark.usefixtures("verified_here")

FP16 = ("--dtype float16",)
HALVES = np.log([0.5, 0.5])


@pytest.fixture(scope="module")
def planted(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("planted") / "model"
    return plant_outliers(checkpoint("untied"), directory, factor=40)


def test_int8_outliers_fail_and_name_their_remedies(planted: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    with pytest.raises(VerificationError, match="rounding costs") as caught:
        export(ExportConfig(model=str(planted), output=output, quantize="int8"))
    assert not output.exists()
    assert "engine layer" not in str(caught.value)
    assert "allowed in this precision: 0.02" in str(caught.value)
    for remedy in ("--migrate", "int8-block", "--dtype float16", "max_divergence"):
        assert remedy in str(caught.value)


def test_a_bundle_with_a_remedy_passes(planted: Path, tmp_path: Path) -> None:
    model, output = str(planted), tmp_path / "bundle"
    config = ExportConfig(model=model, output=output, quantize="int8-block", accuracy_level=0)
    report = export(config)
    assert report.verification is not None
    assert report.verification.verdict == "passed"


def test_verify_applies_the_same_bound(planted: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    export(ExportConfig(model=str(planted), output=output, quantize="int8", verify=False))
    command = ["verify", str(output), "--reference", str(planted), "--json"]
    failed = run(*command)
    assert failed.exit_code == 1
    assert "rounding costs" in str(json.loads(failed.stdout)["error"]["problems"])
    accepted = run(*command, "--max-divergence", "5")
    assert accepted.exit_code == 0, accepted.stderr
    tokens = json.loads(accepted.stdout)["report"]["tokens"]
    assert 0.02 < tokens["divergence"] <= tokens["allowed_divergence"] == 5


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ({0: math.log(0.5), 1: math.log(0.5)}, 0.0),
        ({0: math.log(0.9), 1: math.log(0.1)}, 0.5 * math.log(0.25 / 0.09)),
        ({0: math.log(0.9)}, 0.5 * math.log(0.25 / 0.09)),  # the other token is the rest
        ({0: math.nan}, math.nan),
    ],
)
def test_divergence_sums_over_reported_tokens_and_the_rest(
    logprobs: dict[int, float], expected: float
) -> None:
    assert divergence(HALVES, logprobs) == pytest.approx(expected, abs=1e-5, nan_ok=True)


def token_check(diverged: float) -> TokenCheck:
    return TokenCheck(
        compared=128,
        equal=126,
        ties=0,
        worst_gap=0.1,
        worst_logprob_error=0.1,
        tolerance=0.01,
        required=False,
        divergence=diverged,
        usual_divergence=0.005,
        allowed_divergence=0.02,
    )


@pytest.mark.parametrize(
    ("diverged", "warnings", "problems"),
    [(0.005, 0, 0), (0.006, 1, 0), (0.021, 1, 1), (math.nan, 1, 1)],
)
def test_unusual_divergence_warns_and_excessive_divergence_fails(
    diverged: float, warnings: int, problems: int
) -> None:
    check = token_check(diverged)
    assert (len(check.warnings), len(check.problems)) == (warnings, problems)


def test_unchecked_bundles_have_not_passed() -> None:
    report = VerificationReport(engines=(), tokens=token_check(0.001), seconds=1.0)
    assert report.verdict == "passed"
    noted = report.model_copy(update={"notes": ("plans were built, not run",)})
    assert noted.verdict == "passed, in part"


@pytest.mark.parametrize(
    ("precision", "largest"),
    [
        ({}, None),
        ({"dtype": "bfloat16"}, None),
        ({"kv_dtype": "int8"}, 0.005),
        ({"quantize": "int8", "head_quantize": "int8"}, 0.02),
        ({"quantize": "int8", "head_quantize": "none", "kv_dtype": "int8"}, 0.02),
        ({"quantize": "int4", "head_quantize": "int8", "block_size": 32}, 0.3),
    ],
)
def test_the_coarsest_format_sets_the_bound(
    precision: dict[str, object], largest: float | None
) -> None:
    bound = divergence_bound(PrecisionSpec.model_validate(precision))
    assert (None if bound is None else bound.largest) == largest


def test_remedies_omit_what_was_already_done() -> None:
    int8 = PrecisionSpec(quantize="int8", head_quantize="int8")
    assert "--migrate" in " ".join(remedies(int8))
    assert "--migrate" not in " ".join(remedies(int8, is_migrated=True))
    assert "accuracy_level" not in " ".join(remedies(int8, "tensorrt"))
    exact = {"quantize": "int4", "head_quantize": "int4", "block_size": 32, "accuracy_level": 0}
    left = list(remedies(PrecisionSpec.model_validate(exact)))
    assert "skipdec round" in " ".join(left)
    assert not {"--block-size 32", "accuracy_level 0"}.intersection(left)
    assert list(remedies(PrecisionSpec())) == []


@pytest.mark.parametrize(
    ("block_size", "target", "options"),
    [
        (128, "onnxruntime", " "),
        (64, "onnxruntime", " --block-size 64 "),
        (64, "tensorrt", " --target tensorrt --block-size 64 "),
        (128, "tensorrt-rtx", " --target tensorrt "),
    ],
)
def test_rounding_is_advised_for_the_bundles_own_grid(
    block_size: int, target: str, options: str
) -> None:
    int4 = PrecisionSpec(quantize="int4", head_quantize="int4", block_size=block_size)
    advice = " ".join(remedies(int4, target))
    assert f"'skipdec round MODEL --data FILE{options}-o DIR'" in advice


@pytest.mark.parametrize(
    ("weights", "remedies", "advised"), [((), FP16, True), (("fc1",), FP16, False), ((), (), False)]
)
def test_engines_with_correct_weights_but_large_rounding_get_advice(
    weights: tuple[str, ...], remedies: tuple[str, ...], advised: bool
) -> None:
    check = EngineCheck(
        engine="layer_000",
        worst_tensor="present_key",
        error=0.1,
        tolerance=0.03,
        weights_differ=weights,
    )
    checks = (check,) * 12  # more than are reported individually
    report = VerificationReport(engines=checks, tokens=None, remedies=remedies, seconds=1.0)
    with pytest.raises(VerificationError) as caught:
        report.raise_if_failed("bundle")
    assert ("try --dtype float16" in caught.value.problems[-1]) == advised


def test_warnings_reach_the_caller(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Random weights with post-norms lose far more to int4 than tuned ones."""
    events = RecordedEvents()
    model, output = str(checkpoint("post_norm")), tmp_path / "bundle"
    report = export(ExportConfig(model=model, output=output, quantize="int4"), events)
    assert report.verification is not None
    assert report.verification.warnings == [events.warnings[-1]]
    assert "0.1 or less is usual in this precision, 0.3 is allowed" in events.warnings[-1]
