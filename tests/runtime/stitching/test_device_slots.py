"""A running batch on a device of host memory: each text is what it would be alone.

Over ONNX Runtime behind a device of host memory, and over plans of the fake TensorRT.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_generators import TARGETS, Exported, on_onnxruntime, on_tensorrt
from host_device import HostDevice
from loaded_backends import BACKENDS, ON_GPUS
from random_requests import Wanted, draw, texts, together
from tiny_models import STRUCTURES

from skipdec import CapacityError, Generator, SamplingParams, UsageError
from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.errors import DeviceError, EnvironmentMismatchError
from skipdec.engines.memory import DeviceBuffer
from skipdec.runtime.kv.slots import SlotCache
from skipdec.runtime.schedule.plan import LayerPlan
from skipdec.runtime.scheduling.engine import Engine
from skipdec.runtime.stitching import device_graphs
from skipdec.runtime.stitching.device_rows import StepLayout
from skipdec.runtime.stitching.device_slots import DeviceSlotStitcher
from skipdec.runtime.stitching.slots import StepRow

Open = Callable[..., Generator]
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
MIXED = ("full", "linear:max=5,min=2,horizon=6", "linear:max=4,min=2,horizon=5,placement=bottom")
# Bytes of memory that was never used. TensorRT's attention multiplies what a mask hides by 0, so
# there it must be numbers: 12,689.6 in float32.
UNUSED = {"onnxruntime": 0xFF, "tensorrt": 0x46}


@pytest.fixture(params=list(TARGETS))
def open_on_device(
    request: pytest.FixtureRequest, exported: Exported, tmp_path: Path
) -> Iterator[Open]:
    """``open_on_device(structure, **options of Generator)``; five rows, if they don't say."""
    opened = []

    def open_generator(structure: str = "pre_norm", **options: object) -> Generator:
        bundle, backend = TARGETS[request.param](exported, tmp_path, structure)
        opened.append(Generator(bundle, backend, **({"max_batch_size": 5} | options)))
        return opened[-1]

    yield open_generator
    for generator in opened:
        generator.close()


def device_of(generator: Generator) -> HostDevice:
    assert isinstance(generator.device, HostDevice)
    return generator.device


def slots_of(engine: Engine) -> DeviceSlotStitcher:
    slots = engine._parts.slots
    assert isinstance(slots, DeviceSlotStitcher)
    return slots


def run_all(engine: Engine) -> None:
    while engine.is_busy:
        engine.step()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_each_text_is_what_it_is_alone(open_on_device: Open, structure: str) -> None:
    """Random arrivals, lengths, schedules, completions; long prompts in chunks."""
    generator = open_on_device(structure)
    wanted = draw(7, 30)
    outputs = together(generator, wanted)
    for one, output in zip(wanted, outputs, strict=True):
        assert texts(output) == texts(one.alone(generator))


def test_texts_of_int8_are_the_cpus(exported: Exported) -> None:
    """With the kernels of skipdec, whose texts don't depend on the batch at all."""
    path = exported("pre_norm", quantize="int8", kernels="auto")
    wanted = draw(3, 40)
    with Generator.open(path, threads=1, max_batch_size=4) as generator:
        expected = [texts(output) for output in together(generator, wanted)]
    with Generator.open(path, device="rehearsal", max_batch_size=4) as generator:
        assert [texts(output) for output in together(generator, wanted)] == expected


def test_unused_memory_is_never_read(
    open_on_device: Open, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = open_on_device()
    wanted = draw(11, 20)
    expected = [texts(one.alone(generator)) for one in wanted]
    generator.trim()
    allocate = DeviceMemory.allocate
    unused = UNUSED[request.node.callspec.params["open_on_device"]]

    def poisoned(self: DeviceMemory, nbytes: int) -> DeviceBuffer:
        buffer = allocate(self, nbytes)
        self.device.fill(buffer.address, nbytes, unused)
        return buffer

    monkeypatch.setattr(DeviceMemory, "allocate", poisoned)
    assert [texts(output) for output in together(generator, wanted)] == expected


def test_rows_that_want_all_logits_get_their_own(open_on_device: Open) -> None:
    generator = open_on_device()
    params = [
        SamplingParams(temperature=0, max_tokens=6, logprobs=2),
        SamplingParams(temperature=0.9, seed=1, max_tokens=9, repetition_penalty=1.3),
        SamplingParams(temperature=0.9, seed=2, max_tokens=8, top_p=0.9, logprobs=1),
    ]
    wanted = [
        Wanted([5 + 7 * index, 6, 7], one, MIXED[index], index) for index, one in enumerate(params)
    ]
    for one, output in zip(wanted, together(generator, wanted), strict=True):
        alone = one.alone(generator)
        assert texts(output) == texts(alone)
        (given,), (expected,) = output.outputs, alone.outputs
        assert given.cumulative_logprob == (
            expected.cumulative_logprob and pytest.approx(expected.cumulative_logprob, abs=1e-3)
        )


def test_a_cancelled_request_frees_its_slots_and_changes_no_other(open_on_device: Open) -> None:
    generator = open_on_device()
    wanted = [Wanted([5, 6 + index], GREEDY, schedule, 0) for index, schedule in enumerate(MIXED)]
    expected = [texts(one.alone(generator)) for one in wanted]
    with generator.engine() as engine:
        numbers = [engine.add(one.prompt, one.params, schedule=one.schedule) for one in wanted]
        for _ in range(3):
            engine.step()
        engine.abort(numbers[0])
        run_all(engine)
        assert [texts(engine.take(number)) for number in numbers[1:]] == expected[1:]
        assert engine.stats().reserved_bytes == 0


def test_where_memory_is_short_rows_wait_for_it(open_on_device: Open) -> None:
    """For all layers of five rows, 64 positions each, there would have to be 0.5 MB and more."""
    wanted = draw(5, 15)
    roomy = open_on_device()
    expected = [texts(one.alone(roomy)) for one in wanted]
    tight = open_on_device(kv_memory=400_000)
    assert [texts(output) for output in together(tight, wanted)] == expected
    assert tight.kv_memory.peak <= 400_000
    small = open_on_device(kv_memory=50_000)
    with small.engine() as engine, pytest.raises(CapacityError, match="kv_memory allows 50,000"):
        engine.add([5, 6], GREEDY, schedule="full")


def test_when_a_device_fails_what_runs_ends_and_what_waits_goes_on(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = open_on_device(max_batch_size=2)
    expected = texts(generator.generate([[7, 8, 9]], GREEDY)[0])
    drain = HostDevice.synchronize

    def failing(self: HostDevice) -> None:
        monkeypatch.setattr(HostDevice, "synchronize", drain)
        raise DeviceError("stream", "an illegal memory access was encountered")

    with generator.engine() as engine:
        first = [engine.add([5, 6], GREEDY), engine.add([6, 5], GREEDY, schedule=MIXED[1])]
        for _ in range(3):
            engine.step()
        waiting = [engine.add([7, 8, 9], GREEDY) for _ in range(3)]
        monkeypatch.setattr(HostDevice, "synchronize", failing)
        deltas = engine.step()
        assert {delta.finish_reason for delta in deltas} == {"error"}
        assert sorted(delta.request_index for delta in deltas) == first
        run_all(engine)
        assert {str(texts(engine.take(number))) for number in waiting} == {str(expected)}


def steady(generator: Generator, wanted: list[Wanted]) -> list[Counter[str]]:
    """Run the requests three times in one engine; what the device was asked for each time."""
    device, changes = device_of(generator), []
    with generator.engine() as engine:
        for _ in range(3):
            before = Counter(device.counts)
            for one in wanted:
                engine.add(one.prompt, one.params, schedule=one.schedule)
            steps = engine.stats().steps
            run_all(engine)
            changes.append(device.counts - before)
            changes[-1]["steps"] = engine.stats().steps - steps
    return changes


def test_the_steady_state_allocates_and_captures_nothing(open_on_device: Open) -> None:
    generator = open_on_device(max_batch_size=4)
    wanted = [
        Wanted([5 + index] * 7, GREEDY, schedule, 0) for index, schedule in enumerate(MIXED * 3)
    ]
    _, _, last = steady(generator, wanted)
    assert last["allocate"] == last["pinned"] == last["captures"] == 0
    assert last["graph_launches"] == last["steps"] > 8


def test_a_step_is_one_launch_one_wait_and_copies_no_logits(open_on_device: Open) -> None:
    generator = open_on_device(max_batch_size=4)
    device = device_of(generator)
    with generator.engine() as engine:
        for index, schedule in enumerate(MIXED):
            engine.add([5 + index, 6], GREEDY.updated(max_tokens=30), schedule=schedule)
        for _ in range(12):  # all stand at their last depths
            engine.step()
        before = Counter(device.counts)
        engine.step()
    moved = device.counts - before
    assert moved["graph_launches"] == moved["synchronize"] == 1
    assert moved["bytes_to_host"] == 0  # those of the graph are not counted
    assert {"allocate", "pinned", "captures"}.isdisjoint(moved)


def test_graphs_are_keyed_by_padded_rows_a_layer_not_by_who_they_are(open_on_device: Open) -> None:
    """Rows that start one by one, end one by one and change places: few graphs."""
    generator = open_on_device(max_batch_size=4)
    wanted = [
        Wanted([5, index], GREEDY.updated(max_tokens=4 + index), "full", 3 * index)
        for index in range(8)
    ]
    with generator.engine() as engine:
        for step in range(200):
            for one in wanted:
                if one.arrival == step:
                    engine.add(one.prompt, one.params, schedule=one.schedule)
            engine.step()
        assert engine.stats().finished == len(wanted)
        assert len(slots_of(engine).steps.graphs) <= 3  # 1, 2 and 4 rows; all layers hold the same


def test_beyond_the_graphs_that_are_kept_each_layer_has_its_own(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = draw(9, 12)
    generator = open_on_device(max_batch_size=4)
    expected = [texts(one.alone(generator)) for one in wanted]
    monkeypatch.setattr(device_graphs, "MOST_GRAPHS", 1)
    before = device_of(generator).counts["graph_launches"]
    assert [texts(output) for output in together(generator, wanted)] == expected
    assert device_of(generator).counts["graph_launches"] > before + 100  # some a step


def test_without_graphs_steps_are_enqueued_and_the_reason_is_logged(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: HostDevice) -> None:
        raise DeviceError("stream", "a kernel can't be captured")

    wanted = draw(2, 8)
    expected = [texts(one.alone(open_on_device())) for one in wanted]
    monkeypatch.setattr(HostDevice, "begin_capture", refuse)
    with caplog.at_level(logging.WARNING):
        results = [texts(output) for output in together(open_on_device(), wanted)]
    assert results == expected
    assert sum("can't be captured" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("ends", ["the engine", "the generator"])
def test_closing_frees_all_device_memory(open_on_device: Open, ends: str) -> None:
    generator = open_on_device()
    device = device_of(generator)
    with generator.engine() as engine:
        engine.add([5, 6], GREEDY)
        for _ in range(3):
            engine.step()
        if ends == "the generator":
            generator.close()
            assert not device.allocated
    generator.close()
    assert not device.allocated
    assert engine.is_busy  # a reference to it holds no memory


def test_one_bucket_holds_all_rows_and_a_request_beyond_it_is_refused(
    exported: Exported, tmp_path: Path
) -> None:
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend) as generator:
        for max_model_len, bucket in ((None, 64), (18, 32), (17, 16)):
            most = max_model_len or 63
            with generator.engine(max_model_len=max_model_len) as engine:
                number = engine.add([5] * 6, GREEDY.updated(max_tokens=most - 6))
                if max_model_len is not None:
                    with pytest.raises(CapacityError, match=f"max_model_len allows {most}"):
                        engine.add([5] * 6, GREEDY.updated(max_tokens=most - 5))
                run_all(engine)
                assert len(engine.take(number).outputs[0].token_ids) == most - 6
                assert slots_of(engine)._cache.first(0, 1)[0].shape[2] == bucket
        with pytest.raises(UsageError, match="is 65; the bundle holds 64 positions"):
            generator.engine(max_model_len=65).__enter__()


def test_a_prompt_longer_than_plans_take_runs_in_chunks(exported: Exported, tmp_path: Path) -> None:
    wanted = [Wanted([9, 8, 7, 6, 5] * 4, GREEDY, schedule, 0) for schedule in MIXED]
    with Generator.open(exported("pre_norm"), threads=1) as generator:
        expected = [texts(one.alone(generator)) for one in wanted]
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm", max_prompt_len=6)
    with Generator(bundle, backend) as generator:
        assert [texts(output) for output in together(generator, wanted)] == expected


def test_no_more_prompts_share_a_call_than_plans_take(exported: Exported, tmp_path: Path) -> None:
    wanted = [Wanted([9, 8 + index], GREEDY, "full", 0) for index in range(5)]
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm", max_prefill_rows=2)
    with Generator(bundle, backend) as generator:
        results = [texts(output) for output in together(generator, wanted)]
        assert results == [texts(one.alone(generator)) for one in wanted]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ON_GPUS)
def test_a_running_batch_on_a_gpu(backend: str, exported: Exported, tmp_path: Path) -> None:
    """In float16 a text may part from what it is alone by rounding: most of them don't."""
    try:
        loaded = BACKENDS[backend](exported, tmp_path)
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    wanted = [
        Wanted([5 + index, 6, 7][: 1 + index % 3], params, MIXED[index % 3], index // 2)
        for index in range(18)
    ]
    with Generator(loaded.bundle, loaded.backend, max_batch_size=4) as generator:
        results = [texts(output) for output in together(generator, wanted)]
        expected = [texts(one.alone(generator)) for one in wanted]
    assert [[depths for _, depths, _ in one] for one in results] == [
        [depths for _, depths, _ in one] for one in expected
    ]
    assert sum(one == other for one, other in zip(results, expected, strict=True)) >= 12


def _moves_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = SlotCache._copy
    monkeypatch.setattr(
        SlotCache, "_copy", lambda self, slots, a, b, length: copy(self, slots, a, b, length - 1)
    )


def _lays_out(monkeypatch: pytest.MonkeyPatch, change: Callable[[StepLayout], StepLayout]) -> None:
    of = StepLayout.of
    monkeypatch.setattr(StepLayout, "of", lambda *arguments: change(of(*arguments)))


def _gathers_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(layout: StepLayout) -> StepLayout:
        sources = layout.sources.copy()
        for layer, rows in layout.layers:
            sources[layer, :rows] = sources[layer, :rows][::-1]
        return replace(layout, sources=sources)

    _lays_out(monkeypatch, backwards)


def _takes_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    _lays_out(monkeypatch, lambda layout: replace(layout, places=np.roll(layout.places, 1, axis=0)))


def _retires_a_step_late(monkeypatch: pytest.MonkeyPatch) -> None:
    leave, last = DeviceSlotStitcher._leave_bypassed, dict[int, StepRow]()

    def late(self: DeviceSlotStitcher, row: StepRow) -> None:
        leave(self, last.get(row.row, row._replace(plan=LayerPlan(tuple(range(6))))))
        last[row.row] = row

    monkeypatch.setattr(DeviceSlotStitcher, "_leave_bypassed", late)


@pytest.mark.parametrize(
    "mutate", [_moves_too_little, _gathers_backwards, _takes_other_lengths, _retires_a_step_late]
)
def test_a_wrong_move_gather_length_or_retirement_changes_texts(
    mutate: Callable[[pytest.MonkeyPatch], None],
    exported: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the tests above would see it."""
    wanted = [one for seed in range(2) for one in draw(seed, 12)]
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend, max_batch_size=5) as generator:
        expected = [texts(one.alone(generator)) for one in wanted]
        assert [texts(output) for output in together(generator, wanted)] == expected
        mutate(monkeypatch)
        assert [texts(output) for output in together(generator, wanted)] != expected
