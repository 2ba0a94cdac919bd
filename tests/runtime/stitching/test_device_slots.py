"""A running batch on a device of host memory writes each text as if it ran alone.

The device runs ONNX Runtime or plans of the fake TensorRT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_generators import Exported, Open, device_of, on_onnxruntime
from loaded_backends import BACKENDS, ON_GPUS
from poisoned_caches import poison_devices
from random_requests import ArrivingRequest, draw, run_all, texts, together

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.runtime.stitching.device.rows import StepLayout

GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
MIXED = ("full", "linear:max=5,min=2,horizon=6", "linear:max=4,min=2,horizon=5,placement=bottom")
# Bytes of unused memory. TensorRT's attention multiplies masked values by 0, so there they must be
# numbers: 12,689.6 in float32.
UNUSED = {"onnxruntime": 0xFF, "tensorrt": 0x46}


def test_unused_memory_is_never_read(
    open_on_device: Open, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = open_on_device(max_batch_size=5)
    wanted = draw(11, 20)
    expected = [texts(one.alone(generator)) for one in wanted]
    generator.trim()
    poison_devices(monkeypatch, UNUSED[request.node.callspec.params["open_on_device"]])
    assert [texts(output) for output in together(generator, wanted)] == expected


def test_rows_that_need_all_logits_get_their_own(open_on_device: Open) -> None:
    generator = open_on_device(max_batch_size=5)
    params = [
        SamplingParams(temperature=0, max_tokens=6, logprobs=2),
        SamplingParams(temperature=0.9, seed=1, max_tokens=9, repetition_penalty=1.3),
        SamplingParams(temperature=0.9, seed=2, max_tokens=8, top_p=0.9, logprobs=1),
    ]
    wanted = [
        ArrivingRequest([5 + 7 * index, 6, 7], one, MIXED[index], index)
        for index, one in enumerate(params)
    ]
    for one, output in zip(wanted, together(generator, wanted), strict=True):
        alone = one.alone(generator)
        assert texts(output) == texts(alone)
        (given,), (expected,) = output.outputs, alone.outputs
        assert given.cumulative_logprob == (
            expected.cumulative_logprob and pytest.approx(expected.cumulative_logprob, abs=1e-3)
        )


def test_a_device_failure_ends_running_rows_and_waiting_ones_run(
    open_on_device: Open,
) -> None:
    """The device fails at the first wait after a step that began ahead."""
    generator = open_on_device(max_batch_size=2)
    expected = texts(generator.generate([[7, 8, 9]], GREEDY)[0])
    with generator.running_batch() as engine:
        first = [engine.add([5, 6], GREEDY), engine.add([6, 5], GREEDY, schedule=MIXED[1])]
        for _ in range(3):
            engine.step()
        waiting = [engine.add([7, 8, 9], GREEDY) for _ in range(3)]
        device_of(generator).fails = True
        deltas = engine.step()
        assert {delta.finish_reason for delta in deltas} == {"error"}
        assert sorted(delta.request_index for delta in deltas) == first
        run_all(engine)
        assert {str(texts(engine.take(number))) for number in waiting} == {str(expected)}


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ON_GPUS)
def test_most_texts_of_a_batch_on_a_gpu_equal_those_alone(
    backend: str, exported: Exported, tmp_path: Path
) -> None:
    """In float16, rounding may make a text diverge; most do not."""
    try:
        loaded = BACKENDS[backend](exported, tmp_path)
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    wanted = [
        ArrivingRequest([5 + index, 6, 7][: 1 + index % 3], params, MIXED[index % 3], index // 2)
        for index in range(18)
    ]
    with Generator(loaded.bundle, loaded.backend, max_batch_size=4) as generator:
        results = [texts(output) for output in together(generator, wanted)]
        expected = [texts(one.alone(generator)) for one in wanted]
    assert [[depths for _, depths, _ in one] for one in results] == [
        [depths for _, depths, _ in one] for one in expected
    ]
    assert sum(one == other for one, other in zip(results, expected, strict=True)) >= 12


def _changes_layouts(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[StepLayout], StepLayout]
) -> None:
    of = StepLayout.of
    monkeypatch.setattr(StepLayout, "of", lambda *arguments: change(of(*arguments)))


def _gathers_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(layout: StepLayout) -> StepLayout:
        sources = layout.sources.copy()
        for layer, rows in layout.layers:
            sources[layer, :rows] = sources[layer, :rows][::-1]
        return replace(layout, sources=sources)

    _changes_layouts(monkeypatch, backwards)


def _takes_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    _changes_layouts(
        monkeypatch, lambda layout: replace(layout, fed=np.roll(layout.fed, 1, axis=0))
    )


@pytest.mark.parametrize("mutate", [_gathers_backwards, _takes_other_lengths])
def test_a_wrong_gather_or_length_changes_texts(
    mutate: Callable[[pytest.MonkeyPatch], None],
    exported: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tests above would therefore detect these mistakes."""
    wanted = [one for seed in range(2) for one in draw(seed, 12)]
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend, max_batch_size=5) as generator:
        expected = [texts(one.alone(generator)) for one in wanted]
        assert [texts(output) for output in together(generator, wanted)] == expected
        mutate(monkeypatch)
        assert [texts(output) for output in together(generator, wanted)] != expected
