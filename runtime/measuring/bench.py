"""Benchmark of generation as a user calls it: all schedules in turn, timed by `meter`.

The bandwidth probe makes a pass after each of the first turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ...engines.errors import UsageError
from ...engines.host.events import Events
from ..generator import Generator
from ..libskipdec.calls import NativeCalls
from ..schedule import ExitSchedule, realised_depth
from ..schedule.text import format_schedule
from ..tokens.sampling import SamplingParams
from .bandwidth import PASSES, Probe, open_probe
from .config import BenchConfig
from .cost import CostModel
from .meter import Ratio, Turns, measure
from .prompts import Batch, batches

_WARMUP_TOKENS = 4


Runtime = Generator | NativeCalls
"""A measured runtime: Python's, or libskipdec."""


@dataclass(frozen=True)
class Run:
    """One call of ``generate``."""

    wall_seconds: float
    time_to_first_token: float  # of the row that waited longest
    step_seconds: tuple[float, ...]  # each until the last row had its token
    layers_per_token: tuple[int, ...]
    prompt_lengths: tuple[int, ...] = ()

    @property
    def decode_seconds(self) -> float:
        """The seconds of all steps after the prompt."""
        return sum(self.step_seconds)


@dataclass(frozen=True)
class Measurement:
    """One schedule at one batch size.

    Speed-ups are over full depth, of whole calls unless named otherwise.
    """

    batch_size: int
    name: str  # the schedule as requested
    schedule: str  # its full text
    realised_depth: float
    time_to_first_token: float  # median, seconds
    step_milliseconds_p50: float  # over all steps of all turns
    step_milliseconds_p95: float
    tokens_per_second: float  # of all rows, whole call, median
    wall_seconds: float  # whole call, median
    turns: int  # of each schedule
    speedup: Ratio  # whole call, prompt included
    decode_speedup: Ratio  # steps after the prompt
    bytes_ratio: float  # bytes that those steps read, full depth ÷ this schedule
    runtime: str  # python or native
    of_python: float | None  # native only: seconds of its steps ÷ those of Python
    bytes_per_step: int  # mean, weights, scales and KV
    bandwidth_fraction: float  # bytes per second of a turn's steps ÷ those of the pass after it


@dataclass(frozen=True)
class BenchReport:
    """All measurements of one run, and the bandwidth that was measured in between."""

    measurements: tuple[Measurement, ...]
    bandwidth_bytes_per_second: float  # best pass
    bandwidth_passes: int
    probe_is_valid: bool  # False if a fraction is above 1, which makes all of them meaningless


_Key = tuple[str, ExitSchedule, str]  # runtime; "call" or "steps"


def run_benchmark(
    generator: Generator,
    config: BenchConfig,
    probe: Probe | None = None,
    events: Events | None = None,
    native: NativeCalls | None = None,
) -> BenchReport:
    """Measure every schedule of ``config`` at every batch size, and the bandwidth in between.

    ``probe`` should have as many threads as the engines; None opens one for the device or for all
    cores. ``events`` receives each batch size. ``native`` runs each call again after ``generator``,
    for comparison. Raises what ``Generator.generate`` raises, e.g. UsageError for a prompt that is
    too long.
    """
    BenchConfig.require(config)
    if probe is None:
        with open_probe(generator.device) as own:
            return run_benchmark(generator, config, own, events, native)
    if native is not None and generator.device is not None:
        raise UsageError(
            "runtime", f"is native, which runs on CPUs, but engines run on {generator.device.name}"
        )
    events = events or Events()
    timed: dict[str, Runtime] = {"python": generator}
    if native is not None:
        timed["native"] = native
    measurements: list[Measurement] = []
    by_size = batches(generator, config)
    events.stage("measuring", len(by_size))
    for size, prompts in by_size.items():
        measurements += _Benchmark(generator, timed, config, size, prompts, probe).measure()
        events.advance(f"batch {size}")
    while len(probe.samples) < PASSES:
        probe.measure()
    is_valid = max(entry.bandwidth_fraction for entry in measurements) <= 1
    return BenchReport(tuple(measurements), probe.best, len(probe.samples), is_valid)


def timed_run(
    generator: Runtime, prompts: Sequence[Sequence[int]], schedule: ExitSchedule, num_tokens: int
) -> Run:
    """Generate exactly ``num_tokens`` greedily for each prompt, in one batch, and time it."""
    params = SamplingParams.fixed(temperature=0, seed=0, max_tokens=num_tokens, ignore_eos=True)
    start = perf_counter()
    outputs = generator.generate(list(prompts), params, schedule=schedule)
    wall_seconds = perf_counter() - start
    completions = [request.outputs[0] for request in outputs]
    timings = [completion.timings for completion in completions if completion.timings]
    return Run(
        wall_seconds=wall_seconds,
        time_to_first_token=max(timing.time_to_first_token for timing in timings),
        step_seconds=tuple(
            map(max, zip(*(timing.inter_token_seconds for timing in timings), strict=True))
        ),
        layers_per_token=completions[0].layers_per_token,
        prompt_lengths=tuple(map(len, prompts)),
    )


class _Benchmark:
    """All calls at one batch size."""

    def __init__(
        self,
        generator: Generator,
        timed: Mapping[str, Runtime],
        config: BenchConfig,
        batch_size: int,
        prompts: Sequence[Batch],
        probe: Probe,
    ) -> None:
        self._timed, self._config, self._batch_size = timed, config, batch_size
        self._probe = probe
        self._on_device = generator.device is not None
        self._cost = CostModel(generator.bundle.manifest, on_device=self._on_device)
        self._full = ExitSchedule.full(generator.model.num_layers)
        self._schedules = {self._full: "full"}
        if not config.schedules:
            own = generator.bundle_schedule
            self._schedules.setdefault(own, format_schedule(own))
        for text in config.schedules:
            schedule = generator.resolve_schedule(text, max_tokens=config.num_tokens)
            self._schedules.setdefault(schedule, text)
        self._batches = prompts
        self._runs: dict[tuple[str, ExitSchedule], list[Run]] = {
            (runtime, schedule): [] for schedule in self._schedules for runtime in timed
        }
        self._bandwidths: list[float] = []  # measured after the first turns
        self._step_bytes = cache(self._count_step_bytes)

    def measure(self) -> list[Measurement]:
        """Warm up, take turns, and return a measurement per schedule and runtime."""
        warmup = self._config.num_tokens if self._on_device else _WARMUP_TOKENS
        for schedule in self._schedules:  # on a device all plans run, so that graphs are captured
            for engine in self._timed.values():
                timed_run(engine, self._batches[0], schedule, warmup)
        pairs = [
            ((runtime, schedule, part), (runtime, self._full, part))
            for runtime, schedule in self._runs
            for part in ("call", "steps")
            if not schedule.is_full
        ]
        turns = measure(self._turn, pairs, items=len(self._batches), seconds=self._config.seconds)
        return [
            self._summarise(name, schedule, runtime, turns)
            for schedule, name in self._schedules.items()
            for runtime in self._timed
        ]

    def _turn(self, item: int) -> dict[_Key, float]:
        seconds: dict[_Key, float] = {}
        for (runtime, schedule), runs in self._runs.items():
            engine = self._timed[runtime]
            run = timed_run(engine, self._batches[item], schedule, self._config.num_tokens)
            runs.append(run)
            seconds[runtime, schedule, "call"] = run.wall_seconds
            seconds[runtime, schedule, "steps"] = run.decode_seconds
        if len(self._bandwidths) < PASSES:
            self._bandwidths.append(self._probe.measure())
        return seconds

    def _count_step_bytes(self, schedule: ExitSchedule, lengths: tuple[int, ...]) -> list[int]:
        return [
            self._cost.step(schedule.plan(index), [length + index + 1 for length in lengths]).total
            for index in range(self._config.num_tokens - 1)
        ]

    def _speedup(
        self, part: str, runtime: str, schedule: ExitSchedule, turns: Turns[_Key]
    ) -> Ratio:
        """Return the speed-up of ``part``, unless it is more than fewer layers can give."""
        first = 0 if part == "call" else 1  # the prompt yields the first token
        full, own = (
            sum(sum(run.layers_per_token[first:]) for run in self._runs[runtime, each])
            for each in (self._full, schedule)
        )
        found = turns.ratio((runtime, schedule, part), (runtime, self._full, part))
        return found.within(self._cost.most_speedup(schedule, full / own), "layers allow")

    def _summarise(
        self, name: str, schedule: ExitSchedule, runtime: str, turns: Turns[_Key]
    ) -> Measurement:
        own, full = self._runs[runtime, schedule], self._runs[runtime, self._full]
        steps = [seconds * 1e3 for run in own for seconds in run.step_seconds]
        step_bytes = [self._step_bytes(schedule, run.prompt_lengths) for run in own]
        full_bytes = [self._step_bytes(self._full, run.prompt_lengths) for run in full]
        total = sum(map(sum, step_bytes))
        depth = realised_depth(own[0].layers_per_token)
        assert depth is not None, "BenchConfig asks for two tokens or more"
        steps_of = turns.ratio(("python", schedule, "steps"), (runtime, schedule, "steps"))
        return Measurement(
            batch_size=self._batch_size,
            name=name,
            schedule=format_schedule(schedule),
            realised_depth=depth,
            time_to_first_token=median(run.time_to_first_token for run in own),
            step_milliseconds_p50=_percentile(steps, 50),
            step_milliseconds_p95=_percentile(steps, 95),
            tokens_per_second=median(
                len(run.prompt_lengths) * self._config.num_tokens / run.wall_seconds for run in own
            ),
            wall_seconds=median(run.wall_seconds for run in own),
            turns=len(own),
            speedup=self._speedup("call", runtime, schedule, turns),
            decode_speedup=self._speedup("steps", runtime, schedule, turns),
            bytes_ratio=sum(map(sum, full_bytes)) / total,
            runtime=runtime,
            of_python=None if runtime == "python" else steps_of.value,
            bytes_per_step=total // len(steps),
            bandwidth_fraction=median(
                sum(counts) / run.decode_seconds / bandwidth
                for run, counts, bandwidth in zip(own, step_bytes, self._bandwidths, strict=False)
            ),
        )


def _percentile(values: Sequence[float], percent: float) -> float:
    result: Any = np.percentile(values, percent)
    return float(result)
