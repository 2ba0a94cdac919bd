"""A bypassed layer's engine does not run, nor does any substitute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from device_generators import TARGETS, on_cpu
from host_device import HostDevice

from skipdec import ExitSchedule, Generator, SamplingParams
from skipdec.engines.backends.session import Binding, EngineSession
from skipdec.engines.errors import DeviceError
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import Array


class CountingBinding(Binding):
    """Counts the runs of the binding that it wraps, by engine name."""

    def __init__(self, name: str, binding: Binding, runs: Counter[str]) -> None:
        self.name, self.binding, self.runs = name, binding, runs

    def run(self) -> None:
        self.runs[self.name] += 1
        self.binding.run()

    def release(self) -> None:
        self.binding.release()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of runs per engine, over all sessions."""
    counter: Counter[str] = Counter()
    bind = EngineSession.bind

    def counting_bind(session: EngineSession, tensors: Mapping[TensorRole, Array]) -> Binding:
        return CountingBinding(session.spec.name, bind(session, tensors), counter)

    monkeypatch.setattr(EngineSession, "bind", counting_bind)
    return counter


@pytest.mark.parametrize(
    ("placement", "warmup", "expected"),
    [
        # six tokens: one from the prompt, then budgets 4 3 3 2 2
        ("top", 1, {0: 6, 1: 1, 2: 1, 3: 2, 4: 4, 5: 6}),
        ("bottom", 0, {0: 6, 1: 6, 2: 4, 3: 2, 4: 1, 5: 1}),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_each_engine_runs_as_often_as_scheduled(
    placement: str,
    warmup: int,
    expected: dict[int, int],
    rows: int,
    target: str,
    exported: Callable[..., Path],
    runs: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def refuse(self: HostDevice) -> None:
        raise DeviceError("stream", "a kernel can't be captured")

    schedule = ExitSchedule(
        num_layers=6,
        max_exit_layer=4,
        min_exit_layer=2,
        warmup_layers=warmup,
        horizon=4,
        placement=placement,
    )
    monkeypatch.setattr(HostDevice, "begin_capture", refuse)  # a graph runs all of its engines
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    if target == "cpu":
        opened = on_cpu(exported, "pre_norm")
    else:
        opened = Generator(*TARGETS[target](exported, tmp_path, "pre_norm"))
    with opened as generator:
        generator.generate([[5, 6, 7]] * rows, params, schedule=schedule)
    layers = {f"layer_{index:03d}": count for index, count in expected.items()}
    assert {name: runs[name] for name in layers} == layers
    assert target != "cpu" or runs == layers | {"embed": 6, "head": 6}
