"""Migration moves outliers into weights and keeps the float model, one tensor at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from built_engines import RandomReader, module, tiny_spec
from fixture_types import Checkpoints
from verified_bundles import verified

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import SkipDecError, UsageError, VerificationError
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from skipdec.exporter.architecture.architecture import engine_parameters, quantized_parameters
from skipdec.exporter.architecture.weights import engine_name
from skipdec.exporter.building.journal import content_key
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import BuildConfig, CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.build import check_migration
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.quantization.migration import Migration, fixed_inputs, migrated_reader
from skipdec.exporter.quantization.ranges import ActivationRanges

NORMS = "the layer norm before it has no weight"
RESIDUAL = "its input is the residual as well (norms come after)"
QKV, OUT_PROJ = "self_attn.qkv_proj.weight", "self_attn.out_proj.weight"
LEFT_OUT = {
    "pre_norm": {},
    "untied": {},
    "post_norm": {QKV: RESIDUAL, "fc1.weight": RESIDUAL},
    "no_bias": {
        QKV: NORMS,
        "fc1.weight": NORMS,
        "fc2.weight": "a factor does not pass through GELU",
        "lm_head.weight": NORMS,
    },
}


def migration_of(model: ModelSpec) -> Migration:
    """Return factors from 1/16 to 16 wherever the structure allows them."""
    rng = np.random.default_rng(5)

    def factors(kind: EngineKind, index: int | None) -> dict[str, list[float]]:
        sizes = {each.name: each.shape[0] for each in engine_parameters(kind, model, index)}
        return {
            product: np.exp2(rng.uniform(-4, 4, sizes[product])).tolist()
            for product in quantized_parameters(kind, model)
            if product not in fixed_inputs(kind, model)
        }

    layers = range(model.num_layers)
    return Migration(
        alpha=0.5,
        layers={f"layer_{i:03d}": factors(EngineKind.LAYER, i) for i in layers},
        head=factors(EngineKind.HEAD, None),
    )


@pytest.mark.parametrize("structure", LEFT_OUT)
@pytest.mark.parametrize("kind", [EngineKind.LAYER, EngineKind.HEAD])
def test_migrated_engines_compute_the_same(kind: EngineKind, structure: str) -> None:
    model = tiny_spec(structure)
    reader = RandomReader(model)
    index = 0 if kind is EngineKind.LAYER else None
    factors = migration_of(model).of(engine_name(kind, index))
    migrated = module(kind, model, migrated_reader(reader, factors, kind, index, model))
    own = module(kind, model)
    torch.manual_seed(0)
    hidden = torch.randn(2, 5, model.hidden_size)
    inputs: tuple[torch.Tensor, ...] = (hidden, torch.arange(10))
    if kind is EngineKind.LAYER:
        cache = torch.zeros(2, model.num_heads, 5, model.head_dim)
        mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
        inputs = (hidden, cache, cache, torch.zeros(2, dtype=torch.int64), mask)
    expected, actual = own(*inputs), migrated(*inputs)
    if kind is EngineKind.LAYER:
        assert not torch.allclose(actual[2], expected[2])  # V carries the factors of out_proj
        expected, actual = expected[0], actual[0]
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)
    for name in factors:
        assert not torch.allclose(migrated.get_parameter(name), own.get_parameter(name))


@pytest.mark.parametrize("structure", LEFT_OUT)
def test_factors_that_a_structure_does_not_allow_are_named(structure: str) -> None:
    model = tiny_spec(structure)
    fixed = [fixed_inputs(kind, model) for kind in (EngineKind.LAYER, EngineKind.HEAD)]
    assert fixed[0] | fixed[1] == LEFT_OUT[structure]
    bare = fixed_inputs(EngineKind.HEAD, tiny_spec(final_layer_norm=False))
    assert bare == {"lm_head.weight": "no layer norm comes before it"}


def test_half_precision_checkpoints_are_scaled_in_float32() -> None:
    """Only the value part has factors; packing must not round it."""
    model = tiny_spec()
    reader = RandomReader(model, "float16")
    factors = {OUT_PROJ: [1.0 + i / 1000 for i in range(32)]}
    migrated = migrated_reader(reader, factors, EngineKind.LAYER, 0, model)
    packed = next(p for p in engine_parameters(EngineKind.LAYER, model, 0) if p.name == QKV)
    value = packed.load(migrated)[:, 64:]
    stored = reader.read("decoder.layers.0.self_attn.v_proj.weight").astype(np.float32).T
    np.testing.assert_allclose(value, stored / np.float32(factors[OUT_PROJ]), rtol=1e-6)


def test_migrated_tensors_are_read_one_by_one() -> None:
    model = tiny_spec()
    reader = RandomReader(model)
    factors = migration_of(model).of("layer_000")
    migrated = migrated_reader(reader, factors, EngineKind.LAYER, 0, model)
    assert reader.reads == []
    migrated.read("decoder.layers.0.fc1.weight")
    assert reader.reads == ["decoder.layers.0.fc1.weight"]


def document(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"migration": {"alpha": 0.5, "layers": {}, "head": {}, **changes}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document(alpha=1.5), "migration.alpha is 1.5"),
        (document(head={"lm_head.weight": [0.0]}), "migration.head.lm_head.weight.0 is 0.0"),
        (document(beta=1), "migration.beta"),
        (document(layers={"layer_009": {}}), "has factors of layer_009; the model has 2 layers"),
        (document(layers={"layer_000": {"fc3": [1.0]}}), "layer_000 has factors of fc3; known:"),
        (document(head={"lm_head.weight": [1.0]}), "head has 1 factors of lm_head.weight"),
    ],
)
def test_a_bad_file_is_refused_by_name(content: dict[str, Any], message: str) -> None:
    def read() -> None:
        ranges = ActivationRanges.from_json(json.dumps(content), "ranges.json")
        ranges.check(tiny_spec(), PrecisionSpec(), "ranges.json")

    with pytest.raises(UsageError, match=r"ranges\.json") as caught:
        read()
    assert message in str(caught.value)


def test_impossible_factors_are_refused_with_the_reason() -> None:
    migration = Migration(alpha=0.5, layers={"layer_001": {"fc1.weight": [2.0] * 32}})
    (problem,) = migration.problems(tiny_spec("post_norm"))
    assert problem == f"layer_001 has factors of fc1.weight, which takes none: {RESIDUAL}"


def test_factors_change_the_digest_of_ranges() -> None:
    ranges = ActivationRanges(head={"lm_head.weight": 9.0})
    assert ranges.digest == ActivationRanges.from_json(ranges.model_dump_json(), "r").digest
    factors = Migration(alpha=0.5, head={"lm_head.weight": [2.0]})
    assert ranges.digest != ranges.model_copy(update={"migration": factors}).digest


def test_other_factors_make_another_engine(checkpoint: Checkpoints) -> None:
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint("pre_norm"))))
    parameters = engine_parameters(EngineKind.HEAD, opened.model)
    keys = {
        content_key(
            "head", "canonical", "", parameters, opened.model, PrecisionSpec(), opened.reader, each
        )
        for each in ({}, {"lm_head.weight": [1.0]}, {"lm_head.weight": [2.0]})
    }
    assert len(keys) == 3


@pytest.fixture(scope="module")
def ranges(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with only factors, for the tiny pre_norm model."""
    model = open_checkpoint(CheckpointSource(model=str(checkpoint("pre_norm")))).model
    path = tmp_path_factory.mktemp("ranges") / "ranges.json"
    path.write_text(ActivationRanges(migration=migration_of(model)).model_dump_json())
    return path


@pytest.fixture(scope="module")
def bundle(
    checkpoint: Checkpoints,
    ranges: Path,
    verified_here: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Return a migrated float bundle that passed verification against Hugging Face."""
    output = tmp_path_factory.mktemp("migrated") / "bundle"
    model = str(checkpoint("pre_norm"))
    report = export(ExportConfig(model=model, output=output, ranges=ranges, keep_canonical=True))
    assert report.verification is not None
    assert report.verification.tokens is not None
    return output


@pytest.mark.slow
def test_the_manifest_records_that_weights_were_migrated(bundle: Path, ranges: Path) -> None:
    migration = ActivationRanges.from_json(ranges.read_bytes(), "").migration
    assert migration is not None
    assert EngineBundle.open(bundle).manifest.source["migration"] == migration.digest


def test_verification_requires_the_ranges_file(bundle: Path, checkpoint: Checkpoints) -> None:
    with pytest.raises(VerificationError, match="pass the file as --ranges"):
        verified(bundle, checkpoint("pre_norm"))


def test_a_build_accepts_only_the_factors_of_its_bundle(bundle: Path, ranges: Path) -> None:
    opened = EngineBundle.open(bundle)
    config = BuildConfig(bundle=bundle, target="tensorrt", quantize="int8", ranges=ranges)
    migration = ActivationRanges.from_json(ranges.read_bytes(), "").migration
    check_migration(opened, migration, config)
    with pytest.raises(UsageError, match="not migrated by the same factors"):
        check_migration(opened, None, config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int8"}, "has ranges but no factors; ranges alone are for TensorRT"),
        ({"quantize": "int4"}, "no activation is quantised"),
        ({}, "no activation is quantised; leave it out, set quantize to int8, or keep_canonical"),
    ],
)
def test_ranges_without_effect_are_refused(
    options: dict[str, Any], message: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    path = tmp_path / "plain.json"
    path.write_text("{}")
    values = {"model": str(checkpoint("pre_norm")), "output": tmp_path / "out", "ranges": path}
    with pytest.raises(SkipDecError) as caught:
        export(ExportConfig(**values, **options))
    assert message in str(caught.value)
