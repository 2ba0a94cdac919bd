from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mutations import copy_bundle, edit_parameters
from numpy.typing import NDArray

from skipdec import CompareConfig, Generator, SamplingParams, compare
from skipdec.engines.backends.recording import RecordingBackend
from skipdec.engines.backends.session import open_backend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import EnvironmentMismatchError, UsageError, VerificationError
from skipdec.engines.host.events import Events
from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import EngineSpec
from skipdec.exporter.comparison.report import ComparisonReport
from skipdec.exporter.comparison.run import Comparison
from skipdec.exporter.comparison.sides import Side, open_sides, target_side

Exported = Callable[..., Path]
ENGINES = ["embed", *(f"layer_{index:03d}" for index in range(6)), "head"]


@pytest.fixture(scope="module")
def bundle(exported: Exported) -> Path:
    return exported("pre_norm", keep_canonical=True)


@pytest.fixture(scope="module")
def faulty(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scale one column of layer 3's fc2 by 1.1."""

    def enlarge(weight: NDArray[np.float32]) -> tuple[NDArray[np.float32]]:
        weight[:, 7] *= 1.1
        return (weight,)

    copy = copy_bundle(bundle, tmp_path_factory.mktemp("faulty"))
    edit_parameters(copy, "layer_003", ("fc2.weight",), enlarge)
    return copy


@pytest.fixture(scope="module")
def report(faulty: Path) -> ComparisonReport:
    return compare(CompareConfig(bundle=faulty))


@pytest.fixture
def recording(bundle: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "calls"
    backend = RecordingBackend(open_backend("onnxruntime", threads=1), directory, limit=1 << 24)
    with Generator(EngineBundle.open(bundle), backend, schedule="2x:horizon=4") as generator:
        generator.generate([[5, 6, 7], [8]], SamplingParams(temperature=0, max_tokens=4))
    return directory


def departing(report: ComparisonReport) -> list[str]:
    return [each.engine for each in report.engines if each.first_departing is not None]


def test_the_changed_layer_is_named_with_the_first_tensor_and_its_weight(
    report: ComparisonReport,
) -> None:
    assert [each.engine for each in report.engines] == ENGINES
    assert departing(report) == ["layer_003"]
    engine, tensor = report.first_departure or ("", None)
    assert engine == "layer_003"
    assert tensor is not None
    assert (tensor.made_by, tensor.step) == ("MatMul fc2.weight", 0)
    assert tensor.error > tensor.tolerance == 1e-4
    with pytest.raises(VerificationError, match=r"layer_003.*fc2\.weight.*1 of 8 engines diverge"):
        report.raise_if_departed()


def test_weights_that_differ_from_the_manifest_are_reported(
    bundle: Path, faulty: Path, report: ComparisonReport, tmp_path: Path
) -> None:
    assert report.notes == ()  # changed, but sealed again
    damaged, weights = copy_bundle(bundle, tmp_path), "engines/onnxruntime/layer_003.weights"
    shutil.copy(faulty / weights, damaged / weights)
    (note,) = compare(CompareConfig(bundle=damaged, layers=(3,))).notes
    assert note.startswith(f"pre_norm (onnxruntime): {weights} was damaged or edited")


def test_other_engines_agree_with_their_canonical_graphs_at_every_step(
    report: ComparisonReport,
) -> None:
    assert report.reference.endswith("(canonical)")
    others = [each for each in report.engines if each.engine != "layer_003"]
    assert all(each.calls == 3 and not each.inner for each in others)
    assert all(0 <= tensor.error < 1e-5 for each in others for tensor in each.outputs)


def test_without_canonical_graphs_the_reference_is_not_optimised(exported: Exported) -> None:
    report = compare(CompareConfig(bundle=exported("pre_norm"), layers=(0,)))
    assert report.reference == "pre_norm (onnxruntime:disabled)"
    assert report.problem is None
    report.raise_if_departed()


def test_faults_propagate_if_each_side_reads_its_own_outputs(faulty: Path, bundle: Path) -> None:
    config = CompareConfig(bundle=faulty, against=str(bundle), stitched=True, layers=(2, 3, 4))
    assert departing(compare(config)) == ["layer_003", "layer_004"]


def test_only_the_layers_asked_for_are_compared_on_the_same_inputs(
    faulty: Path, report: ComparisonReport
) -> None:
    part = compare(CompareConfig(bundle=faulty, layers=(3, 5)))
    assert part.engines == (report.engines[4], report.engines[6])


def test_rounding_between_formats_is_tolerated_and_atol_narrows_it(
    exported: Exported, bundle: Path
) -> None:
    quantized = exported("pre_norm", quantize="int8")
    config = CompareConfig(bundle=quantized, against=str(bundle), layers=(0,))
    assert compare(config).problem is None
    narrow = compare(config.updated(atol=1e-6))
    norm, product = narrow.engines[0].inner[:2]
    assert norm.made_by.startswith("LayerNormalization")
    assert (norm.departs, product.departs) == (False, True)  # products round, norms don't


def test_recorded_calls_are_compared(faulty: Path, recording: Path) -> None:
    report = compare(CompareConfig(bundle=faulty, inputs=recording, layers=(3, 5)))
    assert [each.calls for each in report.engines] == [2, 4]  # 2x leaves out layer 3 in two steps
    assert departing(report) == ["layer_003"]
    assert "recorded" in report.inputs


def test_a_recording_that_lacks_calls_says_so(bundle: Path, recording: Path) -> None:
    index = recording / "recording.json"
    text = index.read_text().replace('"engine": "layer_002"', '"engine": "layer_001"')
    index.write_text(text.replace('"complete": true', '"complete": false'))
    report = compare(CompareConfig(bundle=bundle, inputs=recording, layers=(1, 2)))
    notes = " ".join(report.notes)
    assert "not complete" in notes
    assert "not compared: layer_002" in notes


def test_recorded_tensors_of_another_engine_are_refused_before_it_runs(
    bundle: Path, recording: Path
) -> None:
    index = recording / "recording.json"
    index.write_text(index.read_text().replace('"engine": "layer_003"', '"engine": "head"'))
    with pytest.raises(UsageError, match=r"step 0 of head.*has no row_positions"):
        compare(CompareConfig(bundle=bundle, inputs=recording))
    with pytest.raises(UsageError, match="has no call of layer_003"):
        compare(CompareConfig(bundle=bundle, inputs=recording, layers=(3,)))


def test_a_static_capacity_changes_nothing(bundle: Path) -> None:
    class StaticSide(Side):
        def capacity(self, spec: EngineSpec, positions: int) -> int:
            return 64

    config = CompareConfig(bundle=bundle, layers=(1,))
    subject, reference = open_sides(config)
    static = StaticSide(reference.name, reference.bundle, reference.engines, reference.precision)
    report = Comparison(config, subject, static, Events()).run()
    assert report.problem is None
    assert report.engines[0].calls == 3


def test_polygraphy_runs_the_plan_that_fits_the_call(bundle: Path) -> None:
    subject, _ = open_sides(CompareConfig(bundle=bundle))
    spec = subject.engines["layer_000"]
    buckets = tuple({"capacity": size, "graph": spec.graph} for size in (16, 64))
    layer = EngineSpec(**(spec.model_dump() | {"buckets": buckets}))
    side = Side("plans", subject.bundle, {layer.name: layer}, subject.precision, "tensorrt")
    assert (side.capacity(layer, 16), side.capacity(layer, 17)) == (16, 64)
    runner = side.runner(layer, 17)
    assert type(runner).__name__ == "TrtRunner"
    assert callable(runner.set_profile)
    with pytest.raises(UsageError, match="needs 65 positions; the largest plan has 64"):
        side.capacity(layer, 65)


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("onnxruntime", "allowed: onnxruntime:LEVEL, one of disabled, basic, extended, all"),
        ("onnxruntime:fast", "allowed: onnxruntime:LEVEL"),
        ("tensorrt", "skipdec build"),
        ("canonical", "keeps no canonical engines"),
    ],
)
def test_unknown_sides_are_refused_with_the_allowed_ones(
    exported: Exported, against: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compare(CompareConfig(bundle=exported("pre_norm"), against=against))


def test_another_model_another_layer_and_plans_without_a_gpu_are_refused(
    bundle: Path, tmp_path: Path
) -> None:
    opened = EngineBundle.open(bundle)
    model = opened.manifest.model.model_copy(update={"num_heads": 8})
    other = copy_bundle(bundle, tmp_path)
    manifest = opened.manifest.model_copy(update={"model": model}).with_digest()
    (other / "manifest.json").write_text(manifest.to_json())
    with pytest.raises(UsageError, match=r"num_heads is 4; pre_norm \(onnxruntime\) has 8"):
        compare(CompareConfig(bundle=bundle, against=str(other)))
    with pytest.raises(UsageError, match=r"layer \| is 6; .* has 0 to 5"):
        compare(CompareConfig(bundle=bundle, layers=(0, 6)))
    with pytest.raises(UsageError, match="inputs has them"):
        CompareConfig(bundle=bundle, inputs=tmp_path, stitched=True)
    plans = replace(opened, manifest=opened.manifest.model_copy(update={"target": "tensorrt-rtx"}))
    with pytest.raises(EnvironmentMismatchError, match=r"no GPU|not installed"):
        target_side(plans)


@pytest.mark.parametrize("recorded", [False, True])
def test_engines_that_append_in_place_are_compared_with_canonical_ones(
    exported: Exported, recorded: bool, tmp_path: Path
) -> None:
    own = exported("pre_norm", kernels="auto", quantize="int8", keep_canonical=True)
    inputs = None
    if recorded:
        inputs = tmp_path / "calls"
        backend = RecordingBackend(open_backend("onnxruntime", threads=1), inputs, limit=1 << 24)
        with Generator(EngineBundle.open(own), backend, schedule="full") as generator:
            generator.generate([[5, 6, 7], [8]], SamplingParams(temperature=0, max_tokens=4))
    compared = compare(CompareConfig(bundle=own, inputs=inputs, layers=(0, 2)))
    assert [engine.engine for engine in compared.engines] == ["layer_000", "layer_002"]
    assert departing(compared) == []


@pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")
def test_a_cache_that_polygraphy_has_no_type_for_is_refused(exported: Exported) -> None:
    own = exported("pre_norm", kernels="skipdec", kv_dtype="int8")
    with pytest.raises(UsageError, match="has a KV cache of int8, which Polygraphy's runners"):
        compare(CompareConfig(bundle=own))
