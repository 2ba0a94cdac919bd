"""A step of opt-125m beyond its engines: Python's share, and the effect of another process."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from typing_extensions import override

from benchmarks.cpu.bundles import Bundles
from benchmarks.cpu.figure import Figure, Part
from benchmarks.cpu.paired import Paired, Variant
from benchmarks.neighbour import Neighbour
from skipdec import Generator
from skipdec.engines.backends.session import (
    Binding,
    EngineBackend,
    EngineSession,
    open_backend,
)
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import EngineSpec, KVBucket, TensorRole
from skipdec.engines.memory import Tensor

MODEL = "opt-125m"
_STEPS = 200
_BLOCKS, _BLOCK_STEPS = 8, 24


def host_share(bundles: Bundles) -> Part:
    """Measure the part of a step at batch 1 in which no engine runs."""
    path = bundles.path(MODEL, "int8")
    bundle = EngineBundle.open(path)
    backend = TimedBackend(open_backend(bundle.manifest.target))
    with Generator(bundle, backend) as generator:
        shares, seconds = [], []
        steps = Variant(generator).steps(_STEPS)
        for _ in range(_STEPS):
            before = backend.seconds
            seconds.append(next(steps))
            shares.append(1 - (backend.seconds - before) / seconds[-1])
    share = sorted(shares)[_STEPS // 2]
    figure = Figure(
        f"{MODEL} int8, batch 1: host's share of a step",
        "≤ 5 %",
        f"{100 * share:.1f} %",
        share <= 0.05,
    )
    return Part([figure], Paired({f"{MODEL} int8": tuple(seconds)}).timings())


def neighbour(bundles: Bundles) -> Part:
    """Measure a step with one core kept busy, relative to a quiet step, in alternating blocks."""
    steps = bundles.variant(MODEL, "int8", context=320).steps(2 * _BLOCKS * _BLOCK_STEPS)
    quiet: list[float] = []
    busy: list[float] = []
    with Neighbour() as other:
        for _ in range(_BLOCKS):
            quiet += [next(steps) for _ in range(_BLOCK_STEPS)]
            with other.busy():
                busy += [next(steps) for _ in range(_BLOCK_STEPS)]
    paired = Paired({"one core busy": tuple(busy), "quiet": tuple(quiet)})
    p50 = {name: timing["p50"] for name, timing in paired.timings().items()}
    figure = Figure.at_most(
        f"{MODEL} int8, batch 1: step with one of {bundles.threads} cores busy ÷ quiet",
        2.2,
        p50["one core busy"] / p50["quiet"],
        paired.words("one core busy", "quiet"),
    )
    return Part([figure], paired.timings())


class TimedBackend(EngineBackend):
    """Wraps a backend and measures the seconds that its engines run."""

    def __init__(self, backend: EngineBackend) -> None:
        self._backend = backend
        self.memory = backend.memory
        self.device = backend.device
        self.seconds = 0.0

    @override
    def load(
        self, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> EngineSession:
        return _TimedSession(self, self._backend.load(bundle, spec, bucket))

    @override
    def close(self) -> None:
        self._backend.close()


class _TimedSession(EngineSession):
    def __init__(self, timer: TimedBackend, session: EngineSession) -> None:
        super().__init__(session.spec)
        self._timer = timer
        self._session = session

    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        return _TimedBinding(self._timer, self._session.bind(tensors))


class _TimedBinding(Binding):
    def __init__(self, timer: TimedBackend, binding: Binding) -> None:
        self._timer = timer
        self._binding = binding

    def run(self) -> None:
        start = perf_counter()
        self._binding.run()
        self._timer.seconds += perf_counter() - start

    def release(self) -> None:
        self._binding.release()
