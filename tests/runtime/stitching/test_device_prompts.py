"""Prompts on a device of host memory take few calls, waits and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from device_generators import Exported, device_of, on_onnxruntime
from random_requests import run_all

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import LogitsError, SkipDecError
from skipdec.engines.memory import DeviceTensor, Tensor
from skipdec.runtime.kv.cache import SlotCache
from skipdec.runtime.stitching.device.slot_stitcher import DeviceSlotStitcher
from skipdec.runtime.tokens.sampler import Sampler

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ROWS, LENGTH = 64, 40  # more tokens than one CPU call takes
CANDIDATE_BYTES = 64 * (4 + 8)  # logits and ids of a row


@pytest.fixture
def generator(exported: Exported, tmp_path: Path) -> Iterator[Generator]:
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend, max_batch_size=ROWS) as generator:
        yield generator


@pytest.mark.parametrize("schedule", ["full", "linear:max=5,min=2,horizon=6"])
def test_a_full_batch_of_prompts_waits_once_and_copies_no_logits(
    generator: Generator, schedule: str
) -> None:
    """With a schedule, layers run prefixes of several lengths, each with its own inputs."""
    device = device_of(generator)
    with generator.running_batch(admission="fcfs") as batch:
        for row in range(ROWS):
            batch.add([5 + row] * (LENGTH - row % 2), GREEDY, schedule=schedule)
        before = Counter(device.counts)
        batch.step()
        moved = device.counts - before
        assert batch.running_rows == ROWS
    assert moved["waits"] == 1
    assert moved["synchronize"] == 0
    assert moved["bytes_to_host"] == ROWS * CANDIDATE_BYTES


def test_slots_of_a_failed_row_are_zeroed_before_reuse(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention on CUDA multiplies leftovers of the previous row by 0, which may be NaN."""
    device, slots = device_of(generator), list[DeviceTensor]()
    enter, sample = SlotCache.enter, Sampler.take_best

    def entered(self: SlotCache, layer: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        slots.extend(views := enter(self, layer, rows))
        return views

    def failing(self: Sampler, token_id: int) -> object:
        raise ArithmeticError("all are NaN")

    monkeypatch.setattr(SlotCache, "enter", entered)
    with generator.running_batch(admission="fcfs") as batch:
        number = batch.add([5] * LENGTH, GREEDY)
        batch.step()
        assert all(device.bytes_at(slot.address, slot.nbytes).any() for slot in slots)
        monkeypatch.setattr(Sampler, "take_best", failing)
        batch.step()
        monkeypatch.setattr(Sampler, "take_best", sample)
        assert batch.take(number).outputs[0].finish_reason == "error"
        device.synchronize()
        assert not any(device.bytes_at(slot.address, slot.nbytes).any() for slot in slots)
        number = batch.add([5, 6], GREEDY)
        run_all(batch)
        assert batch.take(number).outputs[0].finish_reason == "length"


def test_a_failed_call_frees_its_caches(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator.generate([[5, 6, 7]], GREEDY)
    assert generator.kv_memory.held > 0

    def failing(self: Sampler, token_id: int) -> object:
        raise LogitsError("logits", "all are NaN")

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "take_best", failing)
        with pytest.raises(LogitsError):
            generator.generate([[5, 6, 7]], GREEDY)
    assert generator.kv_memory.held == 0
    assert generator.generate([[5, 6, 7]], GREEDY)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("fails", ["a row", "an engine"])
def test_a_failure_in_a_running_batch_frees_unused_memory(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A failed prompt may have left NaN in the memory that its layers shared."""
    failing, method = (
        (Sampler, "take_best") if fails == "a row" else (DeviceSlotStitcher, "prefill")
    )

    def fail(*_: object) -> object:
        raise SkipDecError("logits", "all are NaN")

    with generator.running_batch(admission="fcfs") as batch:
        batch.add([5] * LENGTH, GREEDY, schedule="3x")
        run_all(batch)
        assert generator.kv_memory.held > 0
        with monkeypatch.context() as patch:
            patch.setattr(failing, method, fail)
            number = batch.add([5] * LENGTH, GREEDY, schedule="3x")
            run_all(batch)
        assert batch.take(number).outputs[0].finish_reason == "error"
        assert generator.kv_memory.held == 0
