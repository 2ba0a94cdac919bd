"""Rows that feed several tokens in a device step get the bits and texts of one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_generators import Exported, device_of, on_onnxruntime, on_tensorrt, slots_of
from loaded_backends import BACKENDS
from machine_devices import TOLERANCES
from random_requests import run_all, texts

from skipdec import Generator, SamplingParams, UsageError
from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.schedule.plan import LayerPlan
from skipdec.runtime.stitching.protocol import StepRow
from skipdec.runtime.tokens.outputs import RequestOutput

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
OWN = {"kernels": "skipdec", "quantize": "int8"}  # drafts are exact
ALL = LayerPlan(tuple(range(6)))


@pytest.fixture
def generator(exported: Exported, tmp_path: Path) -> Iterator[Generator]:
    """Yield a generator of int8 on a device of host memory, with skipdec's kernels."""
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm", **OWN)
    with Generator(bundle, backend, max_batch_size=4) as generator:
        yield generator


def _with_and_without_drafts(
    generator: Generator, draft: str, schedule: str
) -> list[tuple[RequestOutput, RequestOutput]]:
    """Return texts without and with inexact drafts, of which many are right."""
    params = [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=1),
        SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True, logprobs=1),
    ] * 4
    prompts = [[5 + index, 6, 7][: 1 + index % 3] for index in range(len(params))]
    plain = generator.generate(prompts, params, schedule=schedule)
    for _ in range(2):  # the second time with n-grams of the first
        drafted = generator.generate(
            prompts, params, schedule=schedule, draft=f"{draft},adapt=no,exact=no"
        )
    counts = [one.drafts for output in drafted for one in output.outputs if one.drafts]
    assert sum(one.accepted for one in counts) > 50
    return list(zip(plain, drafted, strict=True))


RIGHT_GUESSES = pytest.mark.parametrize(
    ("draft", "schedule"), [("own", "full"), ("ends:3", "constant:max=3")]
)


@RIGHT_GUESSES
def test_engines_that_round_differently_draft_only_with_exact_no(
    exported: Exported, tmp_path: Path, draft: str, schedule: str
) -> None:
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend, max_batch_size=4) as generator:
        with pytest.raises(UsageError, match="needs skipdec's kernels"):
            generator.generate([[5, 6]], draft=draft)
        for one, other in _with_and_without_drafts(generator, draft, schedule):
            assert [len(each.token_ids) for each in one.outputs] == [
                len(each.token_ids) for each in other.outputs
            ]


def test_drafts_reach_the_last_position_with_rotary_embeddings(
    exported: Exported, tmp_path: Path
) -> None:
    """The rotary tables also have rows for the padding after the last tokens."""
    bundle, backend = on_onnxruntime(exported, tmp_path, "llama", dtype="float16")
    with Generator(bundle, backend) as generator:
        num_tokens = generator.model.max_seq_len - 2
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        (output,) = generator.generate([[5, 6]], params, draft="own,exact=no")
    assert len(output.outputs[0].token_ids) == num_tokens


@pytest.mark.gpu
@RIGHT_GUESSES
def test_drafts_on_a_gpu_change_no_text(
    exported: Exported,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    draft: str,
    schedule: str,
) -> None:
    """Log-probabilities differ by rounding on an H200, so drafts are refused unless allowed."""
    try:
        loaded = BACKENDS["onnxruntime-cuda"](exported, tmp_path)
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    with Generator(loaded.bundle, loaded.backend, max_batch_size=4) as generator:
        with pytest.raises(UsageError, match="does not keep the bits on a GPU"):
            generator.generate([[5, 6]], draft=draft)
        pairs = _with_and_without_drafts(generator, draft, schedule)
    differing = [one.request_id for one, other in pairs if texts(one) != texts(other)]
    assert not differing, f"{len(differing)} of {len(pairs)} texts differ"
    differences = [
        abs(found[token].logprob - expected[token].logprob)
        for one, other in pairs
        for each, twin in zip(one.outputs, other.outputs, strict=True)
        for found, expected in zip(each.logprobs or (), twin.logprobs or (), strict=True)
        for token in found.keys() & expected.keys()
    ]
    record_property("greatest difference of log-probabilities", max(differences, default=0.0))
    assert max(differences, default=0.0) <= TOLERANCES["float16"]


@needs_kernels
def test_the_steady_state_is_one_launch_and_one_wait_per_pass(generator: Generator) -> None:
    """There is one graph for each padded number of rows and tokens that occurs."""
    device = device_of(generator)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with generator.running_batch(draft="own,adapt=no") as engine:
        for _ in range(3):
            before, passes = Counter(device.counts), engine.stats().steps
            for index in range(4):
                engine.add([5 + index, 6], params, schedule="full")
            run_all(engine)
            moved = device.counts - before
        steps = engine.stats().steps - passes
        assert engine.stats().accepted_draft_tokens > 100
        assert steps < 20
        assert moved["graph_launches"] == steps
        assert {"allocate", "pinned", "captures"}.isdisjoint(moved)
        assert device.counts["captures"] <= 3 * 4  # 1, 2, 4 rows by 1, 2, 4, 8 tokens


def test_plans_of_tensorrt_refuse_several_tokens_by_name(
    exported: Exported, tmp_path: Path
) -> None:
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend) as generator, generator.running_batch() as engine:
        with pytest.raises(UsageError, match="TensorRT's plans take one per step"):
            slots_of(engine).step([StepRow(0, (5, 6), 3, (ALL, ALL))])
        with pytest.raises(UsageError, match="TensorRT's plans are built for one"):
            generator.generate([[5, 6]], draft="own,exact=no")


def test_padding_beyond_the_slots_is_refused(exported: Exported, tmp_path: Path) -> None:
    """Slots not made for drafts have no room after a row's last position."""
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm")
    with (
        Generator(bundle, backend) as generator,
        generator.running_batch(max_model_len=9) as engine,
    ):
        engine.add([5, 6, 7], SamplingParams(max_tokens=6, ignore_eos=True), schedule="full")
        engine.step()
        with pytest.raises(UsageError, match="padded to 8; its slots hold 9 positions"):
            slots_of(engine).step([StepRow(0, (5,) * 4 + (6,), 3, (ALL,) * 5)])
