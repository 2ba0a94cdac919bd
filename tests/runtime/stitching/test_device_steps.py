"""A running batch on a device of host memory keeps its graphs, memory and one bucket."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
from device_generators import Exported, Open, device_of, on_tensorrt, slots_of
from host_device import HostDevice
from random_requests import ArrivingRequest, draw, run_all, texts, together

from skipdec import CapacityError, Generator, SamplingParams, UsageError
from skipdec.engines.errors import DeviceError
from skipdec.runtime.stitching.device import steps as device_graphs

GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
MIXED = ("full", "linear:max=5,min=2,horizon=6", "linear:max=4,min=2,horizon=5,placement=bottom")


def steady(generator: Generator, wanted: list[ArrivingRequest]) -> list[Counter[str]]:
    """Return the device's operations in each of three runs of the requests in one engine."""
    device, changes = device_of(generator), []
    with generator.running_batch() as engine:
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
        ArrivingRequest([5 + index] * 7, GREEDY, schedule, 0)
        for index, schedule in enumerate(MIXED * 3)
    ]
    _, _, last = steady(generator, wanted)
    assert last["allocate"] == last["pinned"] == last["captures"] == 0
    assert last["graph_launches"] == last["steps"] > 8


def test_a_step_launches_and_waits_once_and_copies_no_logits(open_on_device: Open) -> None:
    generator = open_on_device(max_batch_size=4)
    device = device_of(generator)
    with generator.running_batch() as engine:
        for index, schedule in enumerate(MIXED):
            engine.add([5 + index, 6], GREEDY.updated(max_tokens=30), schedule=schedule)
        for _ in range(12):  # until all rows are at their last depths
            engine.step()
        before = Counter(device.counts)
        engine.step()
    moved = device.counts - before
    assert moved["graph_launches"] == moved["waits"] == 1
    assert moved["synchronize"] == 0  # it would also wait for the next step
    assert moved["bytes_to_host"] <= 4 * 64 * (4 + 8)  # candidates of four rows
    assert {"allocate", "pinned", "captures"}.isdisjoint(moved)


def test_beyond_most_graphs_each_layer_has_its_own(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = draw(9, 12)
    generator = open_on_device(max_batch_size=4)
    expected = [texts(one.alone(generator)) for one in wanted]
    monkeypatch.setattr(device_graphs, "MOST_GRAPHS", 1)
    before = device_of(generator).counts["graph_launches"]
    assert [texts(output) for output in together(generator, wanted)] == expected
    assert device_of(generator).counts["graph_launches"] > before + 100  # several per step


def test_without_graphs_steps_are_enqueued_and_the_reason_is_logged(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: HostDevice) -> None:
        raise DeviceError("stream", "a kernel can't be captured")

    wanted = draw(2, 8)
    expected = [texts(one.alone(open_on_device(max_batch_size=5))) for one in wanted]
    monkeypatch.setattr(HostDevice, "begin_capture", refuse)
    with caplog.at_level(logging.WARNING):
        results = [texts(output) for output in together(open_on_device(max_batch_size=5), wanted)]
    assert results == expected
    assert sum("can't be captured" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("ends", ["the engine", "the generator"])
def test_closing_frees_all_device_memory(open_on_device: Open, ends: str) -> None:
    generator = open_on_device(max_batch_size=5)
    device = device_of(generator)
    with generator.running_batch() as engine:
        engine.add([5, 6], GREEDY)
        for _ in range(3):
            engine.step()
        if ends == "the generator":
            generator.close()
            assert not device.allocated
    generator.close()
    assert not device.allocated
    assert engine.is_busy  # a reference to the batch holds no memory


def test_one_bucket_holds_all_rows_and_larger_requests_are_refused(
    exported: Exported, tmp_path: Path
) -> None:
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend) as generator:
        for max_model_len, bucket in ((None, 64), (18, 32), (17, 16)):
            most = max_model_len or 63
            with generator.running_batch(max_model_len=max_model_len) as engine:
                number = engine.add([5] * 6, GREEDY.updated(max_tokens=most - 6))
                if max_model_len is not None:
                    with pytest.raises(CapacityError, match=f"max_model_len allows {most}"):
                        engine.add([5] * 6, GREEDY.updated(max_tokens=most - 5))
                run_all(engine)
                assert len(engine.take(number).outputs[0].token_ids) == most - 6
                assert slots_of(engine).limits.bucket == bucket
        with pytest.raises(UsageError, match="is 65; the bundle holds 64 positions"):
            generator.running_batch(max_model_len=65).__enter__()


def test_a_prompt_longer_than_the_plans_allow_runs_in_chunks(
    exported: Exported, tmp_path: Path
) -> None:
    wanted = [ArrivingRequest([9, 8, 7, 6, 5] * 4, GREEDY, schedule, 0) for schedule in MIXED]
    with Generator.open(exported("pre_norm"), threads=1) as generator:
        expected = [texts(one.alone(generator)) for one in wanted]
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm", max_prompt_len=6)
    with Generator(bundle, backend) as generator:
        assert [texts(output) for output in together(generator, wanted)] == expected


def test_no_more_prompts_share_a_call_than_the_plans_allow(
    exported: Exported, tmp_path: Path
) -> None:
    wanted = [ArrivingRequest([9, 8 + index], GREEDY, "full", 0) for index in range(5)]
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm", max_prefill_rows=2)
    with Generator(bundle, backend) as generator:
        results = [texts(output) for output in together(generator, wanted)]
        assert results == [texts(one.alone(generator)) for one in wanted]
