"""A device's memory: limits hold, closing gives it back, and closing waits for one step at most."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from threading import Event, Thread
from time import perf_counter

import pytest
from device_generators import Exported
from machine_devices import DEVICES, open_on, require_device
from random_requests import draw, texts, together

from skipdec import CapacityError, Generator, SamplingParams
from skipdec.engines.errors import ClosedError

RecordProperty = Callable[[str, object], None]
ENDLESS = SamplingParams(temperature=0, max_tokens=55, ignore_eos=True)
_PATIENCE = 60.0  # seconds


@DEVICES
def test_where_memory_is_short_rows_wait_and_write_the_same(
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
    assert equal >= (10 if device == "cuda" else len(wanted))  # others group rows otherwise
    with (
        open_on(bundle, device, max_batch_size=5, kv_memory=25_000) as small,
        small.running_batch() as engine,
        pytest.raises(CapacityError, match="kv_memory allows 25,000"),
    ):
        engine.add([5, 6], ENDLESS, schedule="full")


@pytest.mark.gpu
def test_closing_gives_a_gpu_its_memory_back(
    exported: Exported, record_property: RecordProperty
) -> None:
    """Of what ONNX Runtime keeps for the process, nothing grows: from the second opening on."""
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


def _closed_while_generating(generator: Generator) -> tuple[float, BaseException | None]:
    """Return the seconds of ``close`` while a thread generates, and how that thread ended."""
    begun, ended = Event(), list[BaseException]()

    def generate() -> None:
        try:
            while True:
                for _ in generator.stream([[5, 6]], ENDLESS, schedule="full"):
                    begun.set()
        except ClosedError as error:
            ended.append(error)

    thread = Thread(target=generate, daemon=True)
    thread.start()
    assert begun.wait(_PATIENCE)
    start = perf_counter()
    generator.close()
    seconds = perf_counter() - start
    thread.join(_PATIENCE)
    return seconds, ended[0] if ended else None


@DEVICES
def test_closing_waits_for_a_running_step_only(
    exported: Exported, record_property: RecordProperty, device: str
) -> None:
    """A text of 55 tokens takes 55 steps; closing in its middle must not wait for its end."""
    bundle = exported("pre_norm", dtype="float16")
    idle, busy = [], []
    for _ in range(5):
        with open_on(bundle, device) as generator:
            output = generator.generate([[5, 6]], ENDLESS, schedule="full")[0].outputs[0]
            assert output.timings is not None
            step = median(output.timings.step_seconds)
            start = perf_counter()
        idle.append(perf_counter() - start)
        seconds, ended = _closed_while_generating(open_on(bundle, device))
        assert isinstance(ended, ClosedError)
        busy.append(seconds)
    record_property("step in ms", f"{1e3 * step:.3f}")
    record_property("closing when idle, in ms", f"{1e3 * median(idle):.3f}")
    record_property("closing in a step, in ms", f"{1e3 * median(busy):.3f}")
    assert min(busy) < min(idle) + 0.5
