"""Requests to TensorRT get sizes and profiles, or are refused, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from built_engines import tiny_spec

from skipdec.engines.errors import (
    EnvironmentMismatchError,
    MissingExtraError,
    SkipDecError,
    UnsupportedModelError,
    UsageError,
)
from skipdec.engines.host.gpus import Gpu, GpuSurvey
from skipdec.engines.manifest import EngineKind, ModelSpec
from skipdec.engines.trt.build import BuilderFacts, BuildOptions
from skipdec.exporter.architecture.architecture import canonical_signature
from skipdec.exporter.building import tensorrt_options
from skipdec.exporter.building.tensorrt_options import (
    TensorRtOptions,
    default_kv_buckets,
    resolve_options,
)
from skipdec.exporter.quantization_config import QuantizationConfig

MODEL = tiny_spec(hidden_size=64, max_position_embeddings=2048, max_seq_len=2048)
NO_GPU = BuilderFacts("1.7", None, None, None, ("8.6", "8.9"))
H200 = BuilderFacts("11.4", "NVIDIA H200", "9.0", "13.0", ())


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_options, "check_options", lambda options: NO_GPU)


def resolved(model: ModelSpec = MODEL, **options: Any) -> TensorRtOptions:  # noqa: ANN401
    values = {"target": "tensorrt-rtx", "tensorrt": {"gpu_arch": "8.9"}, **options}
    return resolve_options(QuantizationConfig(**values), "float16", model)


@pytest.mark.parametrize(
    ("max_seq_len", "buckets"),
    [(2048, (256, 1024, 2048)), (256, (256,)), (257, (256, 257)), (64, (64,)), (1024, (256, 1024))],
)
def test_default_buckets_end_at_the_longest_sequence(
    max_seq_len: int, buckets: tuple[int, ...]
) -> None:
    assert default_kv_buckets(max_seq_len) == buckets


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (8, 2048, 1)),
        ({"max_batch_size": 64, "max_prompt_len": 256}, (64, 256, 8)),
        ({"max_batch_size": 4, "max_prompt_len": 256}, (4, 256, 4)),
    ],
)
def test_a_prefill_call_holds_about_2048_tokens(
    options: dict[str, int], expected: tuple[int, int, int]
) -> None:
    build = resolved(tensorrt={"gpu_arch": "8.9", **options}).build
    assert (build.max_batch_size, build.max_prompt_len, build.max_prefill_rows) == expected


def test_profiles_are_decode_and_prefill_within_the_bucket() -> None:
    compiled = resolved(tensorrt={"gpu_arch": "8.9", "max_batch_size": 16, "max_prompt_len": 512})
    layer = canonical_signature(EngineKind.LAYER, MODEL, "float16").inputs
    decode, prefill = compiled.profiles(EngineKind.LAYER, layer, 256)
    assert decode["hidden_states"] == ((1, 1, 64), (16, 1, 64), (16, 1, 64))
    assert prefill["hidden_states"] == ((1, 1, 64), (4, 256, 64), (4, 256, 64))
    assert prefill["past_key"] == ((1, 4, 256, 16), (4, 4, 256, 16), (4, 4, 256, 16))
    assert decode["attention_mask"][2] == (16, 1, 1, 256)
    head = canonical_signature(EngineKind.HEAD, MODEL, "float16").inputs
    assert [
        each["row_positions"][2] for each in compiled.profiles(EngineKind.HEAD, head, None)
    ] == [
        (16,),
        (64,),
    ]
    logits = canonical_signature(EngineKind.CANDIDATES, MODEL, "float16").inputs
    (only,) = compiled.profiles(EngineKind.CANDIDATES, logits, None)
    assert only["logits"] == ((1, 61), (16, 61), (16, 61))


def test_only_layers_have_capacities_and_no_gpu_means_no_driver() -> None:
    compiled = resolved()
    assert compiled.capacities(EngineKind.LAYER) == (256, 1024, 2048)
    assert compiled.capacities(EngineKind.HEAD) == ()
    assert (compiled.build.driver, compiled.build.compute_capability) == (None, "8.9")


def test_gpu_and_driver_of_this_machine_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_options, "check_options", lambda options: H200)
    compiled = resolved(target="tensorrt", tensorrt=None)
    assert (compiled.build.compute_capability, compiled.build.driver) == ("9.0", "13.0")


def test_all_problems_of_sizes_model_and_ranges_are_named_together(tmp_path: Path) -> None:
    tensorrt = {"gpu_arch": "8.9", "max_prompt_len": 4096, "kv_buckets": [256, 512]}
    with pytest.raises(UsageError) as caught:
        resolved(
            tiny_spec(max_seq_len=1024, max_position_embeddings=1024),
            quantize="fp8",
            ranges=tmp_path / "none.json",
            tensorrt=tensorrt,
        )
    text = str(caught.value)
    for words in ("4096; allowed: at most max_seq_len, 1024", "512, too small", "none.json"):
        assert words in text
    with pytest.raises(UnsupportedModelError, match="heads are 8 wide"):
        resolved(tiny_spec())


def test_a_bucket_that_no_request_would_use_is_refused() -> None:
    with pytest.raises(UsageError, match="2048 and 4096, which both hold max_seq_len 2048"):
        resolved(tensorrt={"gpu_arch": "8.9", "kv_buckets": [2048, 4096]})


@pytest.mark.parametrize("error", [EnvironmentMismatchError, MissingExtraError])
@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("tensorrt", "--target tensorrt-rtx --gpu-arch 8.9"),
        ("tensorrt-rtx", "--gpu-arch 8.9"),
    ],
)
def test_the_error_without_a_gpu_says_what_works_on_this_machine(
    target: str, advice: str, error: type[SkipDecError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(options: BuildOptions) -> BuilderFacts:
        raise error(f"target {options.target}", "does not work here")

    monkeypatch.setattr(tensorrt_options, "check_options", refuse)
    monkeypatch.setattr(tensorrt_options, "survey_gpus", GpuSurvey)
    with pytest.raises(error) as caught:
        resolved(target=target, tensorrt=None)
    assert advice in str(caught.value)
    assert f"skipdec build BUNDLE --target {target}" in str(caught.value)
    assert "--keep-canonical" in str(caught.value)
    survey = GpuSurvey((Gpu(0, "NVIDIA H200", "9.0", 1),))
    monkeypatch.setattr(tensorrt_options, "survey_gpus", lambda: survey)
    with pytest.raises(error) as caught:
        resolved(target=target, tensorrt=None)
    assert caught.value.problems == ("does not work here",)
