"""Memory of a device stays within limits, and closing frees it after at most one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from device_generators import Exported
from machine_devices import DEVICES, open_on, require_device
from random_requests import draw, texts, together

from skipdec import CapacityError, SamplingParams
from skipdec.engines.errors import ClosedError
from skipdec.runtime.stitching.loaded import EngineLock
from skipdec.runtime.stitching.protocol import Stitcher

RecordProperty = Callable[[str, object], None]
ENDLESS = SamplingParams(temperature=0, max_tokens=55, ignore_eos=True)
_PATIENCE = 60.0  # seconds


@DEVICES
def test_rows_wait_for_scarce_memory_and_keep_their_texts(
    exported: Exported, record_property: RecordProperty, device: str
) -> None:
    """Five rows of 64 positions need 6 layers x 2 x 64 x 5 x 32 numbers, 245,760 bytes."""
    bundle = exported("pre_norm", dtype="float16")
    wanted = draw(5, 15)
    with open_on(bundle, device, max_batch_size=5) as roomy:
        expected = [texts(one) for one in together(roomy, wanted)]
    with open_on(bundle, device, max_batch_size=5, kv_memory=200_000) as tight:
        found = [texts(one) for one in together(tight, wanted)]
        peak = tight.kv_memory.peak
    record_property("peak", peak)
    assert peak <= 200_000
    equal = sum(one == other for one, other in zip(found, expected, strict=True))
    record_property("equal", f"{equal} of {len(wanted)}")
    assert equal >= (10 if device == "cuda" else len(wanted))  # CUDA rounds by group size
    with (
        open_on(bundle, device, max_batch_size=5, kv_memory=25_000) as small,
        small.running_batch() as engine,
        pytest.raises(CapacityError, match="kv_memory allows 25,000"),
    ):
        engine.add([5, 6], ENDLESS, schedule="full")


@pytest.mark.gpu
def test_closing_frees_gpu_memory(exported: Exported, record_property: RecordProperty) -> None:
    """From the second opening on, ONNX Runtime keeps no more memory for the process."""
    require_device("cuda")
    from skipdec.engines.backends.cuda import CudaDevice

    bundle = exported("pre_norm", dtype="float16")
    probe = CudaDevice()
    free = []
    for _ in range(4):
        with open_on(bundle, "cuda", max_batch_size=5) as generator:
            together(generator, draw(9, 10))
        free.append(probe.memory_info()[0])
    probe.close()
    record_property("free after each closing", free)
    assert free[1] - free[3] < 2**20


@DEVICES
def test_closing_waits_only_for_the_running_step(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Close in the fourth of 55 steps, which must not wait for the others."""
    generator = open_on(exported("pre_norm", dtype="float16"), device)
    in_step, may_end, ended = Event(), Event(), list[BaseException]()
    step, steps = EngineLock.step, 0

    @contextmanager
    def held(engines: EngineLock) -> Iterator[Stitcher]:
        nonlocal steps
        with step(engines) as stitcher:
            steps += 1
            if steps == 4:
                in_step.set()
                assert may_end.wait(_PATIENCE)
            yield stitcher

    def generate() -> None:
        try:
            generator.generate([[5, 6]], ENDLESS, schedule="full")
        except ClosedError as error:
            ended.append(error)

    monkeypatch.setattr(EngineLock, "step", held)
    generating, closing = Thread(target=generate), Thread(target=generator.close)
    generating.start()
    assert in_step.wait(_PATIENCE)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()  # the step still runs
    may_end.set()
    closing.join(_PATIENCE)
    generating.join(_PATIENCE)
    assert not closing.is_alive()
    assert len(ended) == 1
    assert steps < 10  # the closing thread may start a few steps late
