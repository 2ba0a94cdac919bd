from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skipdec.engines.errors import UnsupportedModelError, UsageError
from skipdec.engines.manifest import MAX_LAYERS
from skipdec.engines.targets import TARGETS, exported_targets
from skipdec.exporter.architecture.architecture import family_config, hub_id, short_names
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.config import CheckpointSource, ExportConfig
from skipdec.exporter.tensorrt_config import TensorRtConfig

TINY = {"model_type": "opt", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}


def test_a_configuration_survives_json() -> None:
    config = ExportConfig(
        model="opt-1.3b",
        output=Path("out/bundle"),
        quantize="fp8",
        target="tensorrt",
        ranges=Path("ranges.json"),
        tensorrt=TensorRtConfig(kv_buckets=(256, 2048), timing_cache=Path("timings")),
    )
    assert ExportConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"block_size": 32}, "nothing is quantised in blocks"),
        ({"block_size": 48, "quantize": "int4"}, "block_size is 48"),
        ({"block_size": 2**70, "quantize": "int4"}, r"block_size is \d+; allowed: 16, 32"),
        (
            {"dtype": "bfloat16", "kernels": "onnxruntime"},
            "bfloat16, for which ONNX Runtime has no",
        ),
        ({"kv_dtype": "int8", "kernels": "onnxruntime"}, "kv_dtype is int8, but caches have"),
        ({"kv_dtype": "int8", "target": "tensorrt"}, "kv_dtype is int8, but caches have"),
        ({"kernels": "skipdec", "target": "tensorrt"}, "kernels is skipdec, for CPUs; leave it"),
        ({"quantize": "fp8"}, "fp8, for which target onnxruntime has no kernels"),
        ({"tensorrt": {"gpu_arch": "8.9"}}, r"tensorrt.gpu_arch belongs to the targets"),
        (
            {"target": "tensorrt-rtx", "tensorrt": {"timing_cache": "file"}},
            "TensorRT-RTX times no kernels",
        ),
        ({"target": "tensorrt", "accuracy_level": 4}, "accuracy_level is 4, an option of ONNX"),
        ({"target": "tensorrt", "head_quantize": "fp8"}, "needs the ranges of activations"),
        ({"target": "tensorrt", "ranges": "r"}, "no activation is quantised"),
        ({"quantize": "int4", "ranges": "r"}, "no activation is quantised"),
        *(
            (
                {"kernels": "skipdec", "block_size": 16, **quantized},
                "block_size is 16, for which the kernels skipdec have no product; allowed: 32, 64 "
                "or 128, or set kernels to onnxruntime",
            )
            for quantized in ({"quantize": "int4"}, {"head_quantize": "int8-block"})
        ),
        (
            {"kernels": "skipdec", "accuracy_level": 0, "quantize": "int8-block"},
            "accuracy_level is 0, for which the kernels skipdec have no product of blocks",
        ),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ExportConfig(model="opt-125m", **values)


def test_invalid_fields_of_nested_configurations_are_reported() -> None:
    with pytest.raises(UsageError) as caught:
        ExportConfig(
            model="m",
            jobs=0,
            target="tensorrt",
            tensorrt={"max_batch_size": 0, "optimization_level": 6, "kv_bucket": [1]},
        )
    assert {problem.split()[0] for problem in caught.value.problems} == {
        "tensorrt.max_batch_size",
        "tensorrt.optimization_level",
        "tensorrt.kv_bucket",
        "jobs",
    }


@pytest.mark.parametrize(
    ("buckets", "problem"),
    [
        ((64, 32), "ascending order: 32,64"),
        ((0, 8), "is 0; allowed: 1 or"),
        ((), "at least 1 item"),
    ],
)
def test_buckets_must_be_in_order(buckets: tuple[int, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        TensorRtConfig(kv_buckets=buckets)


@pytest.mark.parametrize("field", ["max_batch_size", "kv_buckets", "workspace"])
def test_a_size_beyond_the_manifests_limits_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match=rf"{field} is \d+; allowed: (\d+ or less|below \d+)"):
        TensorRtConfig(**{field: 2**70 if field != "kv_buckets" else (2**70,)})


def test_every_target_except_internal_ones_can_be_exported() -> None:
    assert set(exported_targets()) == set(TARGETS) - {"canonical", "skipdec"}


def test_tensorrt_precision_has_no_accuracy_level() -> None:
    options = {"target": "tensorrt", "quantize": "int8", "head_quantize": "int4"}
    precision = ExportConfig(model="m", **options).precision_for("float16", "a" * 64)
    assert precision.accuracy_level is None
    assert (precision.block_size, precision.activation_ranges) == (128, "a" * 64)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 3}'])
def test_broken_json_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        ExportConfig.from_json(text)


def test_the_head_is_quantised_like_the_layers_by_default() -> None:
    alike = ExportConfig(model="m", quantize="int4").precision()
    assert (alike.head_quantize, alike.block_size, alike.accuracy_level) == ("int4", 128, 4)
    other = ExportConfig(model="m", quantize="int8", head_quantize="none").precision()
    assert (other.head_quantize, other.block_size, other.accuracy_level) == ("none", None, None)


@pytest.mark.parametrize("name", [name for name in short_names() if name.startswith("opt-")])
def test_every_published_size_is_supported(name: str) -> None:
    config = family_config(name)
    assert config is not None
    spec = model_spec(config, hub_id(name))
    assert spec.name == f"facebook/{name}"
    assert spec.final_layer_norm == spec.do_layer_norm_before == (name != "opt-350m")
    assert (spec.word_embed_proj_dim != spec.hidden_size) == (name == "opt-350m")


def test_missing_fields_get_the_defaults_of_transformers() -> None:
    spec = model_spec({"model_type": "opt"}, "defaults")
    assert (spec.num_layers, spec.hidden_size, spec.word_embed_proj_dim) == (12, 768, 768)
    assert (spec.bos_token_id, spec.eos_token_id, spec.pad_token_id) == (2, 2, 1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, True),
        ({"_remove_final_layer_norm": True}, False),
        ({"do_layer_norm_before": False}, False),
        ({"do_layer_norm_before": False, "_remove_final_layer_norm": True}, False),
    ],
)
def test_the_final_layer_norm_follows_transformers(flags: dict[str, bool], expected: bool) -> None:
    assert model_spec({**TINY, **flags}, "tiny").final_layer_norm is expected


@pytest.mark.parametrize("model_type", ["mamba", None, 3, ["opt"]])
def test_an_unregistered_family_is_refused(model_type: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"model_type is .*; allowed: 'opt', 'llama'"):
        model_spec({**TINY, "model_type": model_type}, "odd")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "mixture of experts"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "multi-head latent attention"),
        ({"model_type": "mamba", "state_size": 16}, "state spaces or linear attention"),
        ({"model_type": "lfm2", "conv_L_cache": 3}, "state spaces or linear attention"),
        ({"model_type": "qwen3_next", "linear_conv_kernel_dim": 4}, "linear attention"),
        ({"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}, "several modalities"),
    ],
)
def test_structures_beyond_the_exporter_are_refused_with_the_reason(
    config: dict[str, object], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        model_spec(config, "foreign")


def test_all_reasons_against_a_configuration_are_listed_together() -> None:
    config = {
        **TINY,
        "architectures": ["OPTForSequenceClassification"],
        "activation_function": "gelu_new",
        "num_attention_heads": 7,
        "ffn_dim": 0,
        "enable_bias": "yes",
        "eos_token_id": [2, 1000],
        "bos_token_id": 100,
        "quantization_config": {"quant_method": "gptq"},
    }
    with pytest.raises(UnsupportedModelError) as caught:
        model_spec(config, "odd", max_seq_len=4096)
    text = str(caught.value)
    for reason in (*(config.keys() - TINY.keys()), "num_attention_heads", "4096"):
        assert str(reason) in text
    assert len(caught.value.problems) == 9


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0, "hidden_size": 100},
        {"hidden_size": 4.0, "num_attention_heads": 5},
        *({"vocab_size": size, "eos_token_id": 100_000} for size in (-1, "512", None)),
        *({"max_position_embeddings": size} for size in (-1, "8192", None)),
        {"num_hidden_layers": None, "model_type": "smollm3", "no_rope_layers": [1]},
        {"num_hidden_layers": "2", "model_type": "mistral", "num_key_value_heads": 4}
        | {"layer_types": ["full_attention"] * 2, "sliding_window": None},
    ],
)
def test_a_refused_size_is_not_compared_with_others(change: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        model_spec({**TINY, "max_position_embeddings": 4096, **change}, "odd", max_seq_len=4096)
    (problem,) = caught.value.problems
    assert "allowed: an integer from 1" in problem


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        (7, None, (7,)),
        ([7, 9, 7], None, (7, 9)),
        (7, {"eos_token_id": [9, 7]}, (9, 7)),
        (7, {"eos_token_id": 9}, (9,)),
        ([7, 9], {"eos_token_id": None}, (7, 9)),
        (None, {}, ()),
    ],
)
def test_end_tokens_come_from_generation_config_first(
    config: object, generation: dict[str, Any] | None, ends: tuple[int, ...]
) -> None:
    spec = model_spec({**TINY, "eos_token_id": config}, "tiny", generation_config=generation)
    assert spec.end_token_ids == ends
    assert spec.eos_token_id == next(iter(ends), None)


def test_an_end_token_beyond_the_vocabulary_names_its_file() -> None:
    with pytest.raises(UnsupportedModelError, match=r"generation_config.json: eos_token_id is 9"):
        model_spec(TINY, "tiny", generation_config={"eos_token_id": 9999})


def test_sampling_parameters_of_generation_config_become_defaults() -> None:
    generation = {"do_sample": True, "temperature": 0.6, "top_p": None, "top_k": 20, "pad": 1}
    spec = model_spec(TINY, "tiny", generation_config=generation)
    assert spec.sampling_defaults.given == {"temperature": 0.6, "top_k": 20}
    wrong = {"temperature": -1, "top_p": "all"}
    with pytest.raises(UnsupportedModelError) as caught:
        model_spec(TINY, "tiny", generation_config=wrong)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "generation_config.json: temperature is -1",
        "generation_config.json: top_p is 'all'",
    ]


def test_a_sampling_parameter_beyond_the_limits_names_its_file() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"generation_config.json: top_k is 10+; allowed"
    ):
        model_spec(TINY, "tiny", generation_config={"top_k": 10**21})


ODD = (3, -1, 0, 10**9, 10**30, 0.5, 1e300, float("nan"), "", "3", True, None, [], [3], {}, [[]])


@pytest.mark.parametrize(
    "key",
    [
        *("architectures", "activation_function", "num_attention_heads", "hidden_size", "ffn_dim"),
        *("num_hidden_layers", "vocab_size", "max_position_embeddings", "word_embed_proj_dim"),
        *("enable_bias", "tie_word_embeddings", "do_layer_norm_before", "model_type"),
        *("eos_token_id", "pad_token_id", "quantization_config"),
    ],
)
def test_oversized_configuration_values_are_refused(key: str) -> None:
    for value in ODD:
        problem = key
        try:
            assert model_spec({**TINY, key: value}, "odd").num_layers <= MAX_LAYERS
        except UnsupportedModelError as error:
            problem = str(error)
        assert key in problem or "num_attention_heads" in problem


def test_an_export_passes_all_source_fields_to_the_checkpoint() -> None:
    values: dict[str, Any] = {
        "model": "opt-66b",
        "load_format": "dummy",
        "revision": "main",
        "local_files_only": True,
        "early_exit": True,
        "max_seq_len": 64,
        "seed": 7,
    }
    source = ExportConfig(**values, quantize="int8", dtype="float16").source
    assert source == CheckpointSource(**values)
    assert source.model_dump() == values


@pytest.mark.parametrize(
    ("values", "kv_dtype"),
    [
        ({}, "float32"),
        ({"quantize": "int8"}, "float16"),
        ({"quantize": "int4", "kv_dtype": "float32"}, "float32"),
        ({"quantize": "int8", "dtype": "bfloat16"}, "bfloat16"),
        ({"quantize": "int8", "kernels": "onnxruntime"}, "float32"),
    ],
)
def test_quantised_weights_default_to_16_bit_caches(values: dict[str, Any], kv_dtype: str) -> None:
    precision = ExportConfig(**{"model": "opt-125m", "kernels": "skipdec"} | values).precision()
    assert (precision.kv_dtype or precision.dtype) == kv_dtype
