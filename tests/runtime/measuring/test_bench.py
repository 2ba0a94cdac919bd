"""The benchmark's arithmetic and order follow from a generator with invented times."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hollow_bundles import hollow_manifest

from skipdec.engines.errors import UsageError
from skipdec.runtime.measuring.bandwidth import PASSES
from skipdec.runtime.measuring.bench import BenchReport, run_benchmark
from skipdec.runtime.measuring.config import BenchConfig
from skipdec.runtime.measuring.cost import CostModel
from skipdec.runtime.measuring.prompts import random_prompts
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.outputs import CompletionOutput, RequestOutput, Timings
from skipdec.runtime.tokens.sampling import SamplingParams

SECONDS_PER_LAYER = 0.01


class InventedGenerator:
    """Reports 10 ms per layer and row."""

    device = None
    tokenizer = None

    def __init__(self, num_layers: int, *, seconds_per_layer: float = SECONDS_PER_LAYER) -> None:
        self.seconds_per_layer = seconds_per_layer
        self.bundle = SimpleNamespace(manifest=hollow_manifest(num_layers))
        self.model = self.bundle.manifest.model
        self.bundle_schedule = parse_schedule("2x:horizon=8", num_layers=num_layers)
        self.calls: list[tuple[int, bool, int | None]] = []

    def resolve_schedule(self, schedule: str, *, max_tokens: int) -> ExitSchedule:
        return parse_schedule(schedule, num_layers=self.model.num_layers, horizon=max_tokens)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, schedule: ExitSchedule
    ) -> list[RequestOutput]:
        self.calls.append((len(prompts), schedule.is_full, params.max_tokens))
        assert params.max_tokens is not None
        layers = [schedule.budget(index) for index in range(params.max_tokens - 1)]
        timings = Timings(0.5, tuple(self.seconds_per_layer * len(prompts) * n for n in layers))
        completion = CompletionOutput(
            index=0,
            text="",
            token_ids=(5,) * params.max_tokens,
            layers_per_token=(schedule.num_layers, *layers),
            timings=timings,
        )
        return [RequestOutput("0", None, tuple(row), (completion,), True) for row in prompts]


class InventedProbe:
    def __init__(self, bandwidth: float) -> None:
        self.best = bandwidth
        self.samples: list[float] = []

    def measure(self) -> float:
        self.samples.append(self.best)
        return self.best


def run(bandwidth: float = 1e6, **config: Any) -> tuple[InventedGenerator, BenchReport]:  # noqa: ANN401
    generator, probe = InventedGenerator(12), InventedProbe(bandwidth)
    bench_config = BenchConfig(**{"seconds": 0, **config})
    report = run_benchmark(generator, bench_config, probe)  # type: ignore[arg-type]
    assert report.bandwidth_passes == len(probe.samples) >= PASSES
    return generator, report


def test_schedules_take_turns_and_full_depth_is_the_reference() -> None:
    generator, _ = run(schedules=("4x",), num_tokens=8)
    warmup = [(1, True, 4), (1, False, 4)]
    assert generator.calls == warmup + [(1, True, 8), (1, False, 8)] * 3


def test_full_depth_is_measured_once_even_if_requested() -> None:
    _, report = run(schedules=("full", "2x", "full"), batch_sizes=(1, 2))
    assert [(entry.batch_size, entry.name) for entry in report.measurements] == [
        (1, "full"),
        (1, "2x"),
        (2, "full"),
        (2, "2x"),
    ]


def test_the_bundles_own_schedule_is_measured_by_default() -> None:
    _, report = run()
    own = "linear:max=8,min=4,warmup=1,horizon=8"
    assert [entry.name for entry in report.measurements] == ["full", own]


def test_figures_follow_from_the_times() -> None:
    _, report = run(schedules=("constant:max=3",), num_tokens=9, prompt_length=4)
    full, skipping = report.measurements
    assert skipping.realised_depth == 3
    assert skipping.decode_speedup.value == pytest.approx(12 / 3)
    assert skipping.step_milliseconds_p50 == pytest.approx(30)
    assert skipping.time_to_first_token == 0.5
    assert full.speedup.value == full.decode_speedup.value == full.bytes_ratio == 1.0


def test_a_speedup_beyond_the_layer_ratio_is_not_shown() -> None:
    """3 of 12 layers allow 4×, so steps in a sixteenth of the time were disturbed."""

    class Disturbed(InventedGenerator):
        def generate(self, *args: Any, schedule: ExitSchedule) -> list[RequestOutput]:  # noqa: ANN401
            self.seconds_per_layer = SECONDS_PER_LAYER * (1 if schedule.is_full else 1 / 4)
            return super().generate(*args, schedule=schedule)

    config = BenchConfig(schedules=("constant:max=3",), seconds=0)
    report = run_benchmark(Disturbed(12), config, InventedProbe(1e6))  # type: ignore[arg-type]
    reason = "16.00× was measured, but layers allow at most 4.00×"
    assert report.measurements[1].decode_speedup.disturbed == reason


def test_bandwidth_fraction_is_bytes_over_time_over_bandwidth() -> None:
    _, report = run(bandwidth=1e6, schedules=(), num_tokens=2, prompt_length=4)
    full, _ = report.measurements
    cost = CostModel(hollow_manifest(12)).decode(ExitSchedule.full(12), [4], 2)
    seconds = 12 * SECONDS_PER_LAYER
    assert full.bandwidth_fraction == pytest.approx(cost.total / seconds / 1e6)
    assert full.bytes_per_step == cost.total
    assert report.probe_is_valid


def test_a_probe_slower_than_an_engine_is_invalid() -> None:
    _, report = run(bandwidth=10.0)
    assert report.measurements[0].bandwidth_fraction > 1
    assert not report.probe_is_valid


def test_all_bad_settings_are_refused_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        BenchConfig(batch_sizes=(0,), num_tokens=1, prompt_length=0, seconds=-1)
    assert len(caught.value.problems) == 4
    with pytest.raises(UsageError, match="batch_sizes is"):
        BenchConfig(batch_sizes=())


def test_prompts_are_reproducible_without_special_tokens() -> None:
    prompts = random_prompts(50, batch_size=3, prompt_length=40, seed=1)
    assert prompts == random_prompts(50, batch_size=3, prompt_length=40, seed=1)
    assert [len(row) for row in prompts] == [40, 40, 40]
    assert all(4 <= token < 50 for row in prompts for token in row)


def test_special_tokens_may_have_any_ids() -> None:
    prompts = random_prompts(6, batch_size=2, prompt_length=40, seed=1, special_ids={1, 5})
    assert {token for row in prompts for token in row} == {0, 2, 3, 4}


def test_libskipdec_runs_after_each_call_of_python() -> None:
    generator, native = InventedGenerator(12), InventedGenerator(12, seconds_per_layer=0.005)
    config = BenchConfig(schedules=("4x",), num_tokens=8, seconds=0)
    report = run_benchmark(generator, config, InventedProbe(1e6), native=native)  # type: ignore[arg-type]
    assert native.calls == generator.calls
    assert [entry.runtime for entry in report.measurements] == ["python", "native"] * 2
    assert [entry.of_python for entry in report.measurements] == [None, pytest.approx(0.5)] * 2
    assert report.measurements[3].decode_speedup.value == pytest.approx(
        report.measurements[2].decode_speedup.value
    )
