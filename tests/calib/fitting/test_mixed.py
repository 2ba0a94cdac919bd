"""Fit for a server, whose rows in flight are each at any position of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import run
from hollow_bundles import EMBED_BYTES, HEAD_BYTES, LAYER_BYTES, hollow_manifest
from reports import as_json, shown

from skipdec.calib.data.data import DataConfig
from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.fitting.fitting import fit
from skipdec.calib.fitting.inputs import FitConfig
from skipdec.calib.fitting.report import fit_parts, report_document
from skipdec.calib.fitting.space import SpaceConfig
from skipdec.calib.fitting.speed import SpeedModel
from skipdec.engines.errors import UsageError
from skipdec.runtime.generator import Generator
from skipdec.runtime.measuring.cost import CostModel
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

COST = CostModel(hollow_manifest(6))
KV = 2 * 2 * 4 * 4  # one position in a layer: key and value, 2 heads of 4 float32
ENDS = EMBED_BYTES + HEAD_BYTES
FALLING = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
FULL, SHALLOW = ExitSchedule.full(6), parse_schedule("constant:max=2", num_layers=6)
READ = ENDS + (3 + 5 / 9) * LAYER_BYTES  # steps of 4, 3, 3
OWN_KV, FULL_KV = 2 * (4 + 6 + 9) / 3 * KV, 2 * (6 + 12 + 18) / 3 * KV  # of 2 rows
FULL_STEP = ENDS + 6 * LAYER_BYTES + FULL_KV
TWO_ROWS = SpeedModel(COST, 0, 4, slots=2)


@pytest.fixture(scope="module")
def config(bundle: Path, data: Path) -> FitConfig:
    """Vary only max and min exit layer of 6 layers, for rows in flight."""
    return FitConfig(
        bundle=bundle,
        data=DataConfig(path=data),
        target_speedup=1.3,
        space=SpaceConfig(decays=("linear",), placements=("top",), warmups=(1,)),
        seconds=0,
        speedup_of="mixed",
    )


def test_a_layer_is_read_in_each_step_in_which_any_row_runs_it() -> None:
    """Each of two rows runs the fourth layer at one token in three: one of them does at 5/9."""
    assert TWO_ROWS.expected(FALLING).steps == pytest.approx(FULL_STEP / (READ + OWN_KV))
    assert TWO_ROWS.predicted(FALLING) == TWO_ROWS.expected(FALLING)
    assert TWO_ROWS.allowed(FALLING, "mixed") == TWO_ROWS.expected(FALLING).steps


@pytest.mark.parametrize("schedule", [FALLING, SHALLOW, FULL])
def test_one_slot_reads_as_many_bytes_as_a_single_request(schedule: ExitSchedule) -> None:
    step = COST.running_step(schedule, 5, 4, 1)
    mean = COST.decode(schedule, [5], 4)
    assert step.weights == pytest.approx(mean.weights / 3)
    assert step.weights == pytest.approx(step.shared)
    assert step.kv == pytest.approx(mean.kv / 3)
    alone = SpeedModel(COST, 5, 4).expected(schedule)
    assert SpeedModel(COST, 5, 4, slots=1).expected(schedule) == alone


class _EarlyDepth:
    """A model whose first tokens need most layers, so that steep schedules lose least."""

    def __init__(self, generator: Generator, examples: Sequence[TokenisedExample]) -> None:
        self.num_tokens = [1] * len(examples)

    def score(self, schedule: ExitSchedule, start: int, stop: int) -> list[float]:
        skipped = (6 - len(schedule.plan(index)) for index in range(10))
        loss = 0.1 * sum(layers / 2**index for index, layers in enumerate(skipped))
        return [loss] * (stop - start)


def test_mixed_rows_get_a_flatter_schedule_at_the_same_target(config: FitConfig) -> None:
    with patch("skipdec.calib.fitting.fitting.GeneratorScorer", _EarlyDepth):
        alone = fit(config.updated(speedup_of="steps"), Generator.open).chosen
        served = fit(config, Generator.open).chosen
    falls = [
        entry.schedule.max_exit_layer - entry.schedule.min_exit_layer for entry in (alone, served)
    ]
    assert falls[1] < falls[0]
    assert min(alone.expected.steps, served.expected.steps) >= 1.3
    assert served.loss > alone.loss, "the cost of rows at any position"


def test_running_rows_are_predicted_from_bytes_alone(config: FitConfig) -> None:
    """Nothing is timed, whatever ``seconds`` is; the report names the rows."""
    mixed = config.updated(target_speedup=None, max_loss="100", seconds=7, slots=3)
    with patch("skipdec.calib.fitting.fitting.measure_speedup", side_effect=AssertionError):
        found = fit(mixed)
    assert found.measured is None
    assert found.chosen.expected == found.chosen.predicted
    document = as_json(report_document(found, {}))
    assert (document["config"]["speedup_of"], document["config"]["slots"]) == ("mixed", 3)
    assert document["measured"] is None
    text = shown(fit_parts(found))
    assert "speed-up of the steps of 3 rows in flight: expected" in text


@pytest.mark.parametrize("speedup_of", ["steps", "call"])
def test_slots_are_refused_for_single_requests(config: FitConfig, speedup_of: str) -> None:
    with pytest.raises(UsageError, match=f"slots is 4, but speedup_of is {speedup_of}"):
        config.updated(speedup_of=speedup_of, slots=4, seconds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slots", "4"], "--slots is 4, but --speedup-of is call, of one row"),
        (["--speedup-of", "mixed", "--slots", "0"], "--slots is 0; allowed: 1 or more"),
        (["--speedup-of", "batch"], "is 'batch'; allowed: 'call', 'steps' or 'mixed'"),
    ],
)
def test_errors_name_the_options_of_the_command(
    bundle: Path, data: Path, options: list[str], message: str
) -> None:
    command = ["fit", str(bundle), "--data", str(data), "--target-speedup", "1.3", *options]
    result = run(*command)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split()), result.stderr
