"""Benchmark of generation as a user calls it: schedules side by side, repetitions interleaved.

Speed drifts while a benchmark runs, so each repetition runs every schedule once and one pass of the
bandwidth probe after each; ratios are taken within a repetition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Protocol, cast

import numpy as np

from ...engines.errors import UsageError
from ...engines.host.events import Events
from ..generator import Generator
from ..schedule import ExitSchedule, realised_depth
from ..schedule.text import format_schedule
from ..tokens.outputs import RequestOutput
from ..tokens.sampling import SamplingParams
from .bandwidth import PASSES, Probe, open_probe
from .config import BenchConfig
from .cost import CostModel

MAX_SPREAD = 0.25
BEYOND_BYTES = 2.5  # 1.8 to 2.2 were measured if only the fewer layers fit into a cache
_WARMUP_TOKENS = 4
_SPECIAL_IDS = range(4)  # of OPT's tokenizers: bos, pad, eos, unk


class Generates(Protocol):
    """A measured runtime: a `Generator`, or libskipdec behind `NativeCalls`."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, schedule: ExitSchedule
    ) -> list[RequestOutput]:
        """Continue each prompt."""


@dataclass(frozen=True)
class Run:
    """One call of ``generate``."""

    wall_seconds: float
    time_to_first_token: float  # of the row that waited longest
    step_seconds: tuple[float, ...]
    layers_per_token: tuple[int, ...]

    @property
    def decode_seconds(self) -> float:
        """All steps after the prompt."""
        return sum(self.step_seconds)


@dataclass(frozen=True)
class Measurement:
    """One schedule at one batch size.

    Speed-ups are over full depth and medians of repetitions, of whole calls unless named otherwise.
    """

    batch_size: int
    name: str  # the schedule as requested
    schedule: str  # its full text
    realised_depth: float
    time_to_first_token: float  # median, seconds
    step_milliseconds_p50: float  # over all steps of all repetitions
    step_milliseconds_p95: float
    tokens_per_second: float  # of all rows, whole call, median
    wall_seconds: float  # whole call, median
    speedup: float  # whole call, prompt included
    decode_speedup: float  # steps after the prompt
    bytes_ratio: float  # bytes that those steps read, full depth ÷ this schedule
    runtime: str  # python or native
    of_python: float | None  # native only: seconds of steps over those of Python's run before
    disturbed: str  # evidence that the machine did other work, or ""
    bytes_per_step: int  # mean, weights, scales and KV
    bandwidth_fraction: float  # bytes per second of a repetition's steps / of the pass after it
    best_bandwidth_fraction: float  # the same of the fastest twentieth of steps / the best pass


@dataclass(frozen=True)
class BenchReport:
    """All measurements of one run, and the bandwidth that was measured in between."""

    measurements: tuple[Measurement, ...]
    bandwidth: float  # bytes per second, best pass
    bandwidth_passes: int

    @property
    def probe_is_valid(self) -> bool:
        """False if a measurement exceeds the probe's, which makes all fractions meaningless."""
        return all(
            max(entry.bandwidth_fraction, entry.best_bandwidth_fraction) <= 1
            for entry in self.measurements
        )


# Each run of a schedule, with the bandwidth in bytes per second of the probe pass after it.
_Runs = dict[ExitSchedule, list[tuple[Run, float]]]
_RunsBy = dict[str, _Runs]  # by runtime


def run_benchmark(
    generator: Generator,
    config: BenchConfig,
    probe: Probe | None = None,
    events: Events | None = None,
    native: Generates | None = None,
) -> BenchReport:
    """Measure every schedule of ``config`` at every batch size, and the bandwidth in between.

    ``probe`` should have as many threads as the engines; None opens one for the device or for all
    cores. ``events`` gets each run. ``native`` runs each call again after ``generator``, for
    comparison. Raises what ``Generator.generate`` raises, e.g. UsageError for a prompt that is too
    long.
    """
    if probe is None:
        with open_probe(generator.device) as own:
            return run_benchmark(generator, config, own, events, native)
    if native is not None and generator.device is not None:
        raise UsageError(
            "runtime", f"is native, which runs on CPUs, but engines run on {generator.device.name}"
        )
    schedules = _schedules(generator, config)
    events = events or Events()
    events.stage("measuring", len(config.batch_sizes) * config.repetitions * len(schedules))
    timed: dict[str, Generates] = {"python": generator}
    if native is not None:
        timed["native"] = native
    runs = {
        size: _measure_batch(generator, timed, config, size, schedules, probe, events)
        for size in config.batch_sizes
    }
    while len(probe.samples) < PASSES:
        probe.measure()
    cost = CostModel(generator.bundle.manifest, on_device=generator.device is not None)
    return BenchReport(
        measurements=tuple(
            _summarise(config, cost, size, name, schedule, runs[size], runtime, probe)
            for size in config.batch_sizes
            for schedule, name in schedules.items()
            for runtime in timed
        ),
        bandwidth=probe.best,
        bandwidth_passes=len(probe.samples),
    )


def random_prompts(
    vocab_size: int,
    *,
    batch_size: int,
    prompt_length: int,
    seed: int,
    special_ids: Collection[int] = _SPECIAL_IDS,
) -> list[list[int]]:
    """Return token ids [batch_size][prompt_length], none of them in ``special_ids``.

    If the vocabulary has only special tokens, any may occur.
    """
    ids = np.setdiff1d(np.arange(vocab_size), list(special_ids))
    if not ids.size:
        ids = np.arange(vocab_size)
    chosen = np.random.default_rng(seed).integers(0, ids.size, (batch_size, prompt_length))
    return cast("list[list[int]]", ids[chosen].tolist())


def bundle_prompts(
    generator: Generator, *, batch_size: int, prompt_length: int, seed: int
) -> list[list[int]]:
    """Return ``random_prompts`` without the special tokens of the bundle's tokenizer."""
    tokenizer = generator.tokenizer
    return random_prompts(
        generator.model.vocab_size,
        batch_size=batch_size,
        prompt_length=prompt_length,
        seed=seed,
        special_ids=_SPECIAL_IDS if tokenizer is None else tokenizer.special_ids,
    )


def timed_run(
    generator: Generates, prompts: Sequence[Sequence[int]], schedule: ExitSchedule, num_tokens: int
) -> Run:
    """Generate exactly ``num_tokens`` greedily for each prompt, in one batch, and time it."""
    params = SamplingParams.fixed(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    start = perf_counter()
    outputs = generator.generate(list(prompts), params, schedule=schedule)
    wall_seconds = perf_counter() - start
    completions = [request.outputs[0] for request in outputs]
    timings = [completion.timings for completion in completions if completion.timings]
    return Run(
        wall_seconds=wall_seconds,
        time_to_first_token=max(timing.time_to_first_token for timing in timings),
        step_seconds=timings[0].step_seconds,
        layers_per_token=completions[0].layers_per_token,
    )


def _schedules(generator: Generator, config: BenchConfig) -> dict[ExitSchedule, str]:
    """Return full depth, then the requested schedules, each once, with their names."""
    schedules = {ExitSchedule.full(generator.model.num_layers): "full"}
    if not config.schedules:
        own = generator.bundle_schedule
        schedules.setdefault(own, format_schedule(own))
    for text in config.schedules:
        schedule = generator.resolve_schedule(text, max_tokens=config.num_tokens)
        schedules.setdefault(schedule, text)
    return schedules


def _measure_batch(
    generator: Generator,
    timed: Mapping[str, Generates],
    config: BenchConfig,
    batch_size: int,
    schedules: Mapping[ExitSchedule, str],
    probe: Probe,
    events: Events,
) -> _RunsBy:
    prompts = bundle_prompts(
        generator,
        batch_size=batch_size,
        prompt_length=config.prompt_length,
        seed=config.seed,
    )
    for schedule in schedules:  # on a device all plans, so that their graphs are captured
        warmup = _WARMUP_TOKENS if generator.device is None else config.num_tokens
        for engine in timed.values():
            timed_run(engine, prompts, schedule, warmup)
    runs: _RunsBy = {runtime: {schedule: [] for schedule in schedules} for runtime in timed}
    for repetition in range(config.repetitions):
        for schedule in schedules:
            for runtime, engine in timed.items():
                run = timed_run(engine, prompts, schedule, config.num_tokens)
                runs[runtime][schedule].append((run, probe.measure()))
            events.advance(
                f"batch {batch_size}, repetition {repetition + 1}, {format_schedule(schedule)}"
            )
    return runs


def _summarise(
    config: BenchConfig,
    cost: CostModel,
    batch_size: int,
    name: str,
    schedule: ExitSchedule,
    runs_by: _RunsBy,
    runtime: str,
    probe: Probe,
) -> Measurement:
    runs = runs_by[runtime]
    own = [run for run, _ in runs[schedule]]
    python = [run for run, _ in runs_by["python"][schedule]]
    full = [run for run, _ in runs[ExitSchedule.full(schedule.num_layers)]]
    pairs = list(zip(full, own, strict=True))
    steps = [seconds * 1e3 for run in own for seconds in run.step_seconds]
    lengths = [config.prompt_length] * batch_size
    step_bytes = [
        cost.step(schedule.plan(index), [length + index + 1 for length in lengths]).total
        for index in range(config.num_tokens - 1)
    ]
    rates = [
        nbytes / seconds
        for run in own
        for nbytes, seconds in zip(step_bytes, run.step_seconds, strict=True)
    ]
    wall_seconds = median(run.wall_seconds for run in own)
    decode_speedup = median(full.decode_seconds / own.decode_seconds for full, own in pairs)
    bytes_ratio = cost.bytes_ratio(schedule, lengths, config.num_tokens)
    depth = realised_depth(own[0].layers_per_token)
    assert depth is not None, "BenchConfig asks for two tokens or more"
    return Measurement(
        batch_size=batch_size,
        name=name,
        schedule=format_schedule(schedule),
        realised_depth=depth,
        time_to_first_token=median(run.time_to_first_token for run in own),
        step_milliseconds_p50=_percentile(steps, 50),
        step_milliseconds_p95=_percentile(steps, 95),
        tokens_per_second=batch_size * config.num_tokens / wall_seconds,
        wall_seconds=wall_seconds,
        speedup=median(full.wall_seconds / own.wall_seconds for full, own in pairs),
        decode_speedup=decode_speedup,
        bytes_ratio=bytes_ratio,
        runtime=runtime,
        of_python=None
        if runtime == "python"
        else median(
            own.decode_seconds / before.decode_seconds
            for own, before in zip(own, python, strict=True)
        ),
        disturbed=disturbance([run.wall_seconds for run in full], decode_speedup, bytes_ratio),
        bytes_per_step=sum(step_bytes) // len(step_bytes),
        bandwidth_fraction=median(
            sum(step_bytes) / run.decode_seconds / bandwidth for run, bandwidth in runs[schedule]
        ),
        best_bandwidth_fraction=_percentile(rates, 95) / probe.best,
    )


def _percentile(values: Sequence[float], percent: float) -> float:
    result: Any = np.percentile(values, percent)
    return float(result)


def spread(seconds: Sequence[float]) -> float:
    """Return the distance of the quartiles ÷ the median; 0 for one value.

    >>> spread([1.0, 2.0, 2.0, 2.0, 4.0]), spread([1.0, 2.0, 3.0])
    (0.0, 0.5)
    """
    if len(seconds) < 2:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median(seconds)


def disturbance(full_depth_seconds: Sequence[float], speedup: float, allowed: float) -> str:
    """Return the evidence that other work disturbed a timing, or "".

    ``full_depth_seconds`` are those of repetitions. ``allowed`` is the speed-up that bytes predict;
    only caches allow more (`BEYOND_BYTES`).
    """
    reasons = []
    if (seen := spread(full_depth_seconds)) > MAX_SPREAD:
        reasons.append(
            f"the times of full depth vary by {seen:.0%}; up to {MAX_SPREAD:.0%} is normal"
        )
    if speedup > BEYOND_BYTES * allowed:
        reasons.append(f"a speed-up of {speedup:.2f}× is implausible, bytes allow {allowed:.2f}×")
    return "; ".join(reasons)
