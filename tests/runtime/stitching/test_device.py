"""A device computes the same as the CPU, with few launches, copies and waits."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_generators import Exported, Open, device_of, on_cpu, on_tensorrt
from tiny_models import EVERY_STRUCTURE

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import CapacityError, ClosedError, UsageError
from skipdec.engines.memory import HostMemory
from skipdec.engines.trt.backend import TensorRtBackend

SCHEDULES = (
    "full",
    "linear:max=4,min=2,warmup=1,horizon=6",
    "linear:max=5,min=3,horizon=4",
    "linear:max=3,min=2,warmup=1,horizon=6,prompt=decay",
)
PROMPTS = [np.random.default_rng(n).integers(4, 61, n).tolist() for n in (6, 1, 13, 4, 9)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=9),
    SamplingParams(temperature=0.9, top_k=7, seed=1, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=1, top_p=0.9, seed=2, max_tokens=4),
    SamplingParams(temperature=0, max_tokens=12, min_tokens=3, repetition_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=1),
]


@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
def test_tokens_and_depths_equal_the_cpus(
    open_on_device: Open, exported: Exported, structure: str
) -> None:
    with on_cpu(exported, structure) as generator:
        expected = [
            generator.generate(PROMPTS, PARAMS, schedule=schedule) for schedule in SCHEDULES
        ]
    generator = open_on_device(structure, max_batch_size=3)
    for schedule, outputs in zip(SCHEDULES, expected, strict=True):
        actual = generator.generate(PROMPTS, PARAMS, schedule=schedule)
        for one, other in zip(actual, outputs, strict=True):
            assert one.outputs[0].token_ids == other.outputs[0].token_ids
            assert one.outputs[0].layers_per_token == other.outputs[0].layers_per_token


def test_several_completions_and_logprobs_equal_the_cpus(
    open_on_device: Open, exported: Exported
) -> None:
    params = SamplingParams(n=3, temperature=1, seed=5, max_tokens=6, logprobs=2)
    with on_cpu(exported, "pre_norm") as generator:
        (expected,) = generator.generate([PROMPTS[0]], params, schedule=SCHEDULES[1])
    (actual,) = open_on_device().generate([PROMPTS[0]], params, schedule=SCHEDULES[1])
    for one, other in zip(actual.outputs, expected.outputs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scores_equal_the_cpus(open_on_device: Open, exported: Exported, schedule: str) -> None:
    continuations = [[*row[::-1], 7, 8] for row in PROMPTS]
    with on_cpu(exported, "pre_norm") as generator:
        expected = generator.score(PROMPTS, continuations, schedule=schedule)
    actual = open_on_device().score(PROMPTS, continuations, schedule=schedule)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-3)


def test_repeated_calls_share_a_graph_per_plan_and_row_count(
    open_on_device: Open,
) -> None:
    generator = open_on_device(max_batch_size=4)
    params = [
        SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (6, 3, 6)
    ]
    schedule = "linear:max=4,min=2,warmup=1,horizon=4"
    for _ in range(3):
        generator.generate(PROMPTS[:3], params, schedule=schedule)
    # Budgets 4 3 3 2 2: three rows, padded to four, run 4 and 3; two rows 2. The second step of
    # budget 3 begins before the host knows that a row has ended.
    assert device_of(generator).counts["captures"] == 3


def test_warmup_captures_all_graphs_of_later_calls(open_on_device: Open) -> None:
    generator = open_on_device()
    generator.warmup([1, 2], prompt_length=6, max_tokens=8, schedule=SCHEDULES[1])
    captured = device_of(generator).counts["captures"]
    assert captured == 6
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    generator.generate([PROMPTS[0]] * 2, params, schedule=SCHEDULES[1])
    assert device_of(generator).counts["captures"] == captured


def test_a_shortage_of_memory_is_reported_with_the_numbers(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostMemory, "available_bytes", lambda _: 1 << 26)
    generator = open_on_device(kv_memory=1 << 40)
    free, _ = device_of(generator).memory_info()
    device_of(generator).allocate(free - 1000)
    with pytest.raises(CapacityError, match=r"bytes needed at once, [\d,]+ free of"):
        generator.generate(PROMPTS, SamplingParams(max_tokens=20))


@pytest.mark.parametrize("is_streaming", [False, True])
def test_closing_frees_all_device_memory(open_on_device: Open, is_streaming: bool) -> None:
    generator = open_on_device()
    device = device_of(generator)
    stream = generator.stream(PROMPTS, PARAMS, schedule=SCHEDULES[1])
    next(stream)
    if not is_streaming:
        stream.close()
    generator.close()
    assert not device.allocated
    with pytest.raises(ClosedError) if is_streaming else nullcontext():
        list(stream)
    assert not device.allocated


def test_requests_beyond_the_built_plans_are_refused(exported: Exported, tmp_path: Path) -> None:
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm")
    with pytest.raises(UsageError, match=r"is 9; .* up to 8 rows; .*--max-batch-size"):
        Generator(bundle, backend, max_batch_size=9)
    build = bundle.manifest.build
    assert build is not None
    short = bundle.manifest.model_copy(
        update={"build": build.model_copy(update={"max_prompt_len": 5})}
    )
    limited = replace(bundle, manifest=short)
    with (
        Generator(limited, backend) as generator,
        pytest.raises(CapacityError, match=r"text 0 has 13 tokens; .* up to 5; .*max_prompt_len"),
    ):
        generator.score([PROMPTS[2]], [[5]])


def test_a_call_uses_the_smallest_bucket_that_holds_it(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, buckets = TensorRtBackend.load, set[object]()

    def noted(self: TensorRtBackend, bundle: Any, spec: Any, bucket: Any = None) -> object:  # noqa: ANN401
        buckets.update({bucket.capacity} if bucket else ())
        return load(self, bundle, spec, bucket)

    monkeypatch.setattr(TensorRtBackend, "load", noted)
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend) as generator:
        for max_tokens, expected in ((3, {16}), (4, {16}), (5, {16, 32}), (40, {16, 32, 64})):
            generator.generate([PROMPTS[2]], SamplingParams(max_tokens=max_tokens, temperature=0))
            assert buckets == expected
