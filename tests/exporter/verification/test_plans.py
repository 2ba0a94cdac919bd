"""Verify bundles of plans on their GPU, and report where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from built_engines import RandomReader, tiny_spec
from fake_plans import compile_bundle
from fake_tensorrt import FakeTensorRt
from fixture_types import Checkpoints, Exported
from host_device import HostDevice
from mutations import reseal
from verified_bundles import verified as verified_against

from skipdec.engines.backends.session import EngineBackend
from skipdec.engines.manifest import EngineKind, PrecisionSpec
from skipdec.engines.trt.backend import TensorRtBackend
from skipdec.exporter.verification import plans as verify_plans
from skipdec.exporter.verification import tokens as verify_tokens
from skipdec.exporter.verification.reference import Reference, ReferenceBuilder
from skipdec.exporter.verification.report import VerificationReport

LAYERS = [f"layer_{index:03d}" for index in range(6)]
SMALL = {"max_batch_size": 2, "max_prompt_len": 5, "max_prefill_rows": 1}


@pytest.fixture
def plans(exported: Exported, tmp_path: Path) -> Path:
    """Return plans for the fake TensorRT whose batches are smaller than verification's."""
    source = exported("pre_norm", keep_canonical=True)
    return compile_bundle(source, tmp_path / "plans", kv_buckets=(16, 64), **SMALL)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_fake(target: str, **options: object) -> EngineBackend:
        device = HostDevice()
        return TensorRtBackend(device=device, library=FakeTensorRt(device).library())

    for module in (verify_plans, verify_tokens):
        monkeypatch.setattr(module, "open_backend", open_fake)


@pytest.fixture
def verified(checkpoint: Checkpoints) -> Callable[[Path], VerificationReport]:
    return lambda bundle: verified_against(bundle, checkpoint("pre_norm"))


@pytest.mark.usefixtures("fake_gpu")
def test_plans_and_tokens_are_compared_on_their_gpu(
    plans: Path, verified: Callable[[Path], VerificationReport]
) -> None:
    report = verified(plans)
    assert report.problems == []
    buckets = [f"{layer}.t{capacity}" for layer in LAYERS for capacity in (16, 64)]
    names = [check.engine for check in report.engines if not check.engine.startswith("canonical")]
    assert names == ["embed", *buckets, "head", "candidates"]
    assert max(check.error for check in report.engines) < 1e-4
    assert report.tokens is not None
    assert report.tokens.equal + report.tokens.ties == report.tokens.compared == 128
    assert report.notes == ()


@pytest.mark.usefixtures("fake_gpu")
def test_a_wrong_plan_is_named_with_its_bucket(
    plans: Path, verified: Callable[[Path], VerificationReport]
) -> None:
    plan = plans / "engines/tensorrt/layer_002.t64.plan"
    plan.write_text(plan.read_text().replace("layer_002.onnx", "layer_003.onnx"))
    reseal(plans)
    report = verified(plans)
    broken = {check.engine for check in report.engines if check.problems}
    assert broken == {"layer_002.t64"}


def test_canonical_engines_replace_plans_without_a_gpu(
    plans: Path, verified: Callable[[Path], VerificationReport]
) -> None:
    report = verified(plans)
    assert report.problems == []
    assert {check.engine.split()[0] for check in report.engines} == {"canonical"}
    assert report.tokens is not None
    text = "\n".join(report.summary())
    assert "plans were built, not run: " in text
    assert "greedy tokens are those of the canonical engines" in text


def test_nothing_is_claimed_without_a_gpu_or_canonical_engines(
    plans: Path, verified: Callable[[Path], VerificationReport]
) -> None:
    reseal(plans, canonical=())
    report = verified(plans)
    assert (report.engines, report.tokens) == ((), None)
    assert [note.split(",")[0] for note in report.summary()] == [
        "plans were built",
        "canonical engines were not kept",
    ]


@pytest.mark.parametrize(
    "precision",
    [
        PrecisionSpec(dtype="float16", quantize="int8"),
        PrecisionSpec(dtype="bfloat16", quantize="int4", block_size=16),
        PrecisionSpec(dtype="float16", quantize="fp8", activation_ranges="0" * 64),
    ],
    ids=lambda precision: precision.quantize,
)
def test_quantised_plans_are_compared_with_dequantised_weights(precision: PrecisionSpec) -> None:
    model = tiny_spec()
    reader = RandomReader(model)
    builder = ReferenceBuilder(Reference(model, precision, reader, "tensorrt"), EngineKind.LAYER, 0)
    stored = dict(builder.tensors())
    assert "fc1.weight.quantized" in stored
    seen = builder.module.get_parameter("fc1.weight").numpy()
    exact = reader.read("decoder.layers.0.fc1.weight").T
    step = np.abs(exact).max() / (7 if precision.quantize == "int4" else 14)
    assert 0 < np.abs(seen - exact).max() < step
