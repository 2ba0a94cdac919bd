from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_types import Exported
from mutations import copy_bundle, edit_parameters, reseal
from numpy.typing import NDArray

from skipdec import CompareConfig, compare
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import EnvironmentMismatchError, UsageError, VerificationError
from skipdec.engines.host.events import Events
from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import EngineSpec
from skipdec.exporter.comparison.engines import compare_engines
from skipdec.exporter.comparison.report import ComparisonReport
from skipdec.exporter.comparison.sides import Side, open_sides, target_side

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


def diverging(report: ComparisonReport) -> list[str]:
    return [name for name, each in report.worst.items() if each.diverges]


def test_the_changed_layer_is_named_with_the_first_tensor_and_its_weight(
    report: ComparisonReport,
) -> None:
    assert list(report.worst) == ENGINES
    assert diverging(report) == ["layer_003"]
    tensor = report.first_divergence
    assert tensor is not None
    assert (tensor.engine, tensor.made_by, tensor.step) == ("layer_003", "MatMul fc2.weight", 0)
    assert tensor.error > tensor.tolerance == 1e-4
    with pytest.raises(VerificationError, match=r"layer_003.*fc2\.weight.*1 of 8 engines diverge"):
        report.raise_if_diverging()


def test_other_engines_agree_with_their_canonical_graphs_at_every_step(
    report: ComparisonReport,
) -> None:
    assert report.reference.endswith("(canonical)")
    others = [each for each in report.outputs if each.engine != "layer_003"]
    assert {(each.engine, each.step) for each in others} == {
        (name, step) for name in ENGINES if name != "layer_003" for step in (0, 1)
    }
    assert all(0 <= tensor.error < 1e-5 for tensor in others)


def test_the_unoptimised_bundle_replaces_missing_canonical_graphs(exported: Exported) -> None:
    report = compare(CompareConfig(bundle=exported("pre_norm"), layers=(0,)))
    assert report.reference == "pre_norm (onnxruntime:disabled)"
    assert report.problem is None
    report.raise_if_diverging()


def test_only_the_selected_layers_are_compared_on_the_same_inputs(
    faulty: Path, report: ComparisonReport
) -> None:
    part = compare(CompareConfig(bundle=faulty, layers=(3, 5)))
    assert part.outputs == tuple(
        each for each in report.outputs if each.engine in ("layer_003", "layer_005")
    )


def test_rounding_between_formats_is_tolerated_unless_atol_is_small(
    exported: Exported, bundle: Path
) -> None:
    quantized = exported("pre_norm", quantize="int8")
    config = CompareConfig(bundle=quantized, against=str(bundle), layers=(0,))
    assert compare(config).problem is None
    narrow = compare(config.updated(atol=1e-6))
    norm, product = narrow.inner[:2]
    assert norm.made_by.startswith("LayerNormalization")
    assert (norm.diverges, product.diverges) == (False, True)  # only products round


def test_a_static_capacity_changes_nothing(bundle: Path) -> None:
    class StaticSide(Side):
        def capacity(self, spec: EngineSpec, positions: int) -> int:
            return 64

    config = CompareConfig(bundle=bundle, layers=(1,))
    subject, reference = open_sides(config)
    static = StaticSide(reference.name, reference.bundle, reference.engines, reference.precision)
    assert compare_engines(config, subject, static, Events()).problem is None


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
    reseal(other, model=model)
    with pytest.raises(UsageError, match=r"num_heads is 4; pre_norm \(onnxruntime\) has 8"):
        compare(CompareConfig(bundle=bundle, against=str(other)))
    with pytest.raises(UsageError, match=r"--layer \| is 6; .* has 0 to 5"):
        compare(CompareConfig(bundle=bundle, layers=(0, 6)))
    plans = replace(opened, manifest=opened.manifest.model_copy(update={"target": "tensorrt-rtx"}))
    with pytest.raises(EnvironmentMismatchError, match=r"no GPU|not installed"):
        target_side(plans)


def test_engines_that_append_in_place_are_compared_with_canonical_ones(exported: Exported) -> None:
    own = exported("pre_norm", kernels="auto", quantize="int8", keep_canonical=True)
    compared = compare(CompareConfig(bundle=own, layers=(0, 2)))
    assert list(compared.worst) == ["layer_000", "layer_002"]
    assert diverging(compared) == []


@pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")
def test_a_cache_type_that_polygraphy_lacks_is_refused(exported: Exported) -> None:
    own = exported("pre_norm", kernels="skipdec", kv_dtype="int8")
    with pytest.raises(UsageError, match="has a KV cache of int8, which Polygraphy's runners"):
        compare(CompareConfig(bundle=own))
