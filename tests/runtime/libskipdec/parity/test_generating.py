"""libskipdec and Python generate equal tokens, texts, layers, finish reasons and ranks."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_documents import edit
from mutations import copy_bundle
from runtimes import Runtime, TimedRequest, both, native_params, run_native, schedule_json
from tiny_models import EVERY_STRUCTURE

from skipdec import Generator, SamplingParams
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.kernels.library import find_library

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

PROMPTS = [np.random.default_rng(n).integers(4, 131, n).tolist() for n in (6, 1, 13)]
SCHEDULES = (
    "full",
    "linear:max=4,min=2,warmup=1,horizon=4",
    "linear:max=6,min=2,warmup=1,horizon=12",
    "linear:max=5,min=3,warmup=2,horizon=8",
    "linear:max=4,min=1,warmup=0,horizon=9",
    "linear:max=5,min=2,horizon=1",
    "constant:max=3",
    "constant:max=4,placement=unified",
    "linear:max=5,min=2,warmup=0,horizon=8,placement=bottom",
    "linear:max=4,min=2,horizon=4,placement=unified-nested",
    "linear:max=5,min=2,horizon=4,placement=hierarchical",
    "d3:max=6,min=2,alpha=0.8,placement=d3,tail=1",
    "table:table=5/5/3/2",
    "power:max=5,min=2,horizon=8,power=2",
    "2x:horizon=9,prompt=decay",
    "linear:max=3,min=2,horizon=5,prompt=decay",
)
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)


def expect_equal(
    runtimes: tuple[Runtime, Runtime], requests: list[TimedRequest], **options: object
) -> None:
    python, native = runtimes
    for each, expected, given in zip(
        requests, python.run(requests), native.run(requests, **options), strict=True
    ):
        assert given == expected, each
        for one, other in zip(expected, given, strict=True):
            for row, other_row in zip(one.logprobs, other.logprobs, strict=True):
                assert row == pytest.approx(other_row, abs=2e-5)


@pytest.fixture(scope="module")
def runtimes(exported: Callable[..., Path]) -> Iterator[tuple[Runtime, Runtime]]:
    with both(exported("untied", kernels="auto", quantize="int8")) as pair:
        yield pair


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_all_schedules_in_one_batch_give_equal_results(
    runtimes: tuple[Runtime, Runtime], prefix_cache: bool
) -> None:
    requests = [
        TimedRequest(prompt, GREEDY, schedule) for schedule in SCHEDULES for prompt in PROMPTS
    ]
    expect_equal(runtimes, requests, prefix_cache=prefix_cache, max_batch_size=5)


@pytest.mark.parametrize("min_tokens", [0, 6])
def test_every_end_token_stops_its_row(
    exported: Callable[..., Path], tmp_path: Path, min_tokens: int
) -> None:
    bundle = copy_bundle(exported("untied", kernels="auto", quantize="int8"), tmp_path)
    with Generator.open(bundle, threads=1) as generator:
        texts = [row.outputs[0].token_ids for row in generator.generate(PROMPTS, GREEDY)]
    ends = [2, *dict.fromkeys(text[index] for index, text in zip((2, 4, 6), texts, strict=True))]
    edit(bundle, "manifest.json", lambda manifest: manifest["model"].update(end_token_ids=ends))
    params = GREEDY.model_copy(update={"ignore_eos": False, "min_tokens": min_tokens})
    with both(bundle) as (python, native):
        made = native.run([TimedRequest(prompt, params) for prompt in PROMPTS])
        assert made == python.run([TimedRequest(prompt, params) for prompt in PROMPTS])
    for (row,) in made:
        assert (row.finish_reason, row.stop_reason) == ("stop", None)
        assert row.token_ids[-1] in ends
        assert min_tokens < len(row.token_ids) < 14
        assert not set(row.token_ids[:-1]) & set(ends)


def test_the_bundles_sampling_defaults_apply_where_a_request_has_none(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = copy_bundle(exported("untied", kernels="auto", quantize="int8"), tmp_path)
    defaults = {"temperature": 0.4, "top_k": 7, "top_p": 0.8, "min_p": 0.1}
    defaults["repetition_penalty"] = 1.5
    change = {"sampling_defaults": defaults}
    given = {"max_tokens": 14, "ignore_eos": True, "seed": 1}
    requests = [
        TimedRequest(PROMPTS[0], SamplingParams(**given, **more))
        for more in ({}, {"temperature": 1.0}, {"top_k": 0, "top_p": 1.0}, defaults)
    ]
    with both(bundle) as (_, native):
        neutral = native.run(requests)
    edit(bundle, "manifest.json", lambda manifest: manifest["model"].update(change))
    with both(bundle) as (python, native):
        made = native.run(requests)
        assert made == python.run(requests)
    assert made[0] == made[3] == neutral[3] != neutral[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "float16"},
        {"quantize": "int8"},
        {"quantize": "int8-block"},
        {"quantize": "int4"},
        pytest.param({"kernels": "skipdec"}, marks=needs_kernels),
        pytest.param({"kernels": "skipdec", "dtype": "bfloat16"}, marks=needs_kernels),
        pytest.param({"kernels": "skipdec", "quantize": "int4"}, marks=needs_kernels),
        pytest.param({"kernels": "skipdec", "quantize": "int8-block"}, marks=needs_kernels),
        *(
            pytest.param(
                {"kernels": "skipdec", "quantize": "int8", "kv_dtype": kv_dtype},
                marks=needs_kernels,
            )
            for kv_dtype in ("float32", "float16", "bfloat16", "int8")
        ),
    ],
    ids=lambda options: "-".join(options.values()) or "float32",
)
def test_every_precision_gives_equal_results(
    exported: Callable[..., Path], options: dict[str, str]
) -> None:
    with both(exported("pre_norm", **options)) as runtimes:
        # Run them one at a time: rounding of float products depends on the number of rows.
        requests = [
            TimedRequest(prompt, GREEDY, schedule, after=1 << 20)
            for schedule in (SCHEDULES[0], SCHEDULES[1], SCHEDULES[-1])
            for prompt in PROMPTS
        ]
        expect_equal(runtimes, requests)


@needs_kernels
@pytest.mark.parametrize(
    ("structure", "options"),
    [
        ("llama", {"dtype": "bfloat16"}),
        ("llama", {"quantize": "int4", "kv_dtype": "float32"}),
        ("llama", {"quantize": "int8-block", "kv_dtype": "bfloat16"}),
        ("qwen3", {"dtype": "float16", "kv_dtype": "int8"}),
        ("qwen3", {"quantize": "int8", "kv_dtype": "bfloat16"}),
    ],
)
def test_rotary_structures_give_equal_results_in_other_precisions(
    exported: Callable[..., Path], structure: str, options: dict[str, str]
) -> None:
    with both(exported(structure, kernels="skipdec", **options)) as runtimes:
        requests = [
            TimedRequest(prompt, GREEDY, schedule, after=1 << 20)
            for schedule in (SCHEDULES[1], SCHEDULES[-1])
            for prompt in PROMPTS
        ]
        expect_equal(runtimes, requests)


@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
def test_every_structure_gives_equal_results(exported: Callable[..., Path], structure: str) -> None:
    with both(exported(structure, kernels="auto", quantize="int8")) as runtimes:
        expect_equal(runtimes, [TimedRequest(prompt, GREEDY, SCHEDULES[1]) for prompt in PROMPTS])


@pytest.mark.parametrize(
    "params",
    [
        {"seed": 0},
        {"seed": 2**64 - 1, "temperature": 0.3, "n": 3},
        {"seed": 1, "top_k": 5},
        {"seed": 2, "top_p": 0.6, "min_p": 0.01},
        {"seed": 3, "repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"seed": 4, "logprobs": 4, "min_tokens": 5, "stop_token_ids": [7, 8, 9, 10, 11, 12]},
        {"temperature": 0, "logprobs": 0},
    ],
    ids=str,
)
def test_every_sampling_option_gives_equal_results(
    runtimes: tuple[Runtime, Runtime], params: dict[str, Any]
) -> None:
    chosen = SamplingParams(max_tokens=12, **params)
    expect_equal(runtimes, [TimedRequest(prompt, chosen, SCHEDULES[1]) for prompt in PROMPTS])


@pytest.mark.parametrize("max_prefill_tokens", [16, 2048])
def test_hundreds_of_requests_at_random_times_give_equal_results(
    runtimes: tuple[Runtime, Runtime], max_prefill_tokens: int
) -> None:
    chance = random.Random(max_prefill_tokens)
    common = [chance.randrange(4, 131) for _ in range(36)]  # many prompts begin with these
    requests, deltas = [], 0
    for _ in range(200):
        n = chance.choice((1, 1, 1, 2, 3))
        params = SamplingParams(
            n=n,
            max_tokens=chance.choice((1, 2, 5, 9, 20)),
            temperature=0.8 if n > 1 else chance.choice((0.0, 0.8)),
            seed=chance.randrange(2**64),
            ignore_eos=chance.random() < 0.7,
        )
        prompt = [chance.randrange(4, 131) for _ in range(chance.randint(1, 20))]
        if chance.random() < 0.3:
            prompt = common[: chance.randint(1, 36)] + prompt[:5]
        deltas += chance.choice((0, 0, 1, 6))
        requests.append(TimedRequest(prompt, params, chance.choice(SCHEDULES), after=deltas))
    options = {"max_batch_size": 6, "kv_memory": 3_000_000}
    expect_equal(runtimes, requests, max_prefill_tokens=max_prefill_tokens, **options)


def test_a_cancelled_request_keeps_the_beginning_of_its_text(
    runtimes: tuple[Runtime, Runtime],
) -> None:
    python, native = runtimes
    requests = [TimedRequest(PROMPTS[n % 3], GREEDY, SCHEDULES[n % 5], n, n % 4) for n in range(24)]
    whole = [TimedRequest(each.prompt, each.params, each.schedule) for each in requests]
    for (expected,), (given,) in zip(python.run(whole), native.run(requests), strict=True):
        assert given.finish_reason == "abort"
        assert given.token_ids == expected.token_ids[: len(given.token_ids)]
        assert 0 < len(given.token_ids) < 14


def test_scores_equal_those_of_python(exported: Callable[..., Path]) -> None:
    bundle = exported("untied", kernels="auto", quantize="int8")
    with Generator.open(bundle, threads=1) as generator:
        expected = [
            one
            for schedule in SCHEDULES
            for one in generator.score(PROMPTS, PROMPTS[::-1], schedule=schedule)
        ]
    lines = [
        {"prompt": prompt, "continuation": after, "schedule": schedule_json(schedule, 6)}
        for schedule in SCHEDULES
        for prompt, after in zip(PROMPTS, PROMPTS[::-1], strict=True)
    ]
    for given, wanted in zip(run_native(bundle, lines), expected, strict=True):
        assert given["layers"] == list(wanted.layers_per_token)
        assert given["logprobs"] == pytest.approx(list(wanted.logprobs), abs=2e-5)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"skip_special_tokens": False, "ignore_eos": True},
        {"stop": ("e", "st")},
        {"stop": ("a", "ab", " "), "include_stop_str_in_output": True, "min_tokens": 3},
    ],
    ids=str,
)
def test_texts_stop_where_python_stops(text_bundle: Path, params: dict[str, Any]) -> None:
    texts = ["naïve café", "a stop", "日本語 ☕", "x" * 20]
    with both(text_bundle, horizon=4) as runtimes:
        requests = [
            TimedRequest(
                text, SamplingParams(max_tokens=30, seed=seed, temperature=1.5, **params), "2x"
            )
            for seed in range(6)
            for text in texts
        ]
        expect_equal(runtimes, requests)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "text"}, "no tokenizer"),
        (
            {"prompt": [5], "params": {"stop": ["a"]}},
            "stop strings need a tokenizer; use stop_token_ids",
        ),
    ],
    ids=str,
)
def test_texts_are_refused_without_a_tokenizer_and_token_ids_run(
    exported: Callable[..., Path], line: dict[str, Any], words: str
) -> None:
    bundle = exported("untied", kernels="auto", quantize="int8")
    good = {"prompt": [5], "params": {"max_tokens": 2, "ignore_eos": True}}
    refused, made = run_native(bundle, [line, good])
    assert words in refused["error"]
    assert len(made["outputs"][0]["token_ids"]) == 2


def test_the_limit_of_logprobs_counts_tokens_within_max_model_len(
    exported: Callable[..., Path],
) -> None:
    bundle = exported("untied", kernels="auto", quantize="int8")
    line = {"prompt": [5], "params": {"max_tokens": 0, "logprobs": 131, "n": 200}}
    options = {"max_batch_size": 200, "max_model_len": 3}
    (made,) = run_native(bundle, [line], **options)
    assert len(made["outputs"]) == 200
    (refused,) = run_native(bundle, [line], **options | {"max_model_len": 0})
    # 200 texts of 63 tokens with 132 entries each, including that of the chosen token.
    assert "logprobs 131 are 1,663,200 log-probabilities" in refused["error"]


@pytest.mark.parametrize("raw_prompts", [False, True])
def test_text_prompts_use_the_bundles_template_unless_raw(
    text_bundle: Path, tmp_path: Path, raw_prompts: bool
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(text_bundle, bundle)
    manifest = EngineBundle.read_manifest(bundle)
    changed = manifest.model_copy(update={"prompt_template": "Post: {prompt}\nTL;DR:"})
    (bundle / "manifest.json").write_text(changed.with_digest().to_json(), encoding="utf-8")
    with Generator.open(bundle, threads=1, raw_prompts=raw_prompts) as generator:
        (wanted,) = generator.generate(["a é"], GREEDY)
    line = {"prompt": "a é", "params": native_params(GREEDY)}
    (given,) = run_native(bundle, [line], raw_prompts=raw_prompts)
    assert tuple(given["prompt_token_ids"]) == wanted.prompt_token_ids
    assert given["outputs"][0]["text"] == wanted.outputs[0].text


@needs_kernels
def test_copied_weights_give_the_same_tokens(runtimes: tuple[Runtime, Runtime]) -> None:
    requests = [TimedRequest(prompt, GREEDY, SCHEDULES[1]) for prompt in PROMPTS]
    expect_equal(runtimes, requests, copies_weights=True)
