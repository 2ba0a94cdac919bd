"""prompt=decay lowers budgets along a prompt, so that each layer runs a prefix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.kv.buffers import KVLayout
from skipdec.runtime.kv.limits import Limits
from skipdec.runtime.kv.plans import SlotMemory
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.placements import PLACEMENTS
from skipdec.runtime.schedule.text import parse_schedule

repeatable = settings(deadline=None, derandomize=True, database=None)
NESTED = tuple(placement for placement in PLACEMENTS if placement != "unified")


@st.composite
def decaying(draw: st.DrawFn) -> ExitSchedule:
    num_layers = draw(st.integers(2, 40))
    smallest = draw(st.integers(2, num_layers))
    placement = draw(st.sampled_from(NESTED))
    return ExitSchedule(
        num_layers=num_layers,
        max_exit_layer=draw(st.integers(smallest, num_layers)),
        min_exit_layer=smallest,
        horizon=draw(st.integers(1, 50)),
        placement=placement,
        tail=1 if placement == "d3" else None,
        prompt="decay",
    )


@repeatable
@given(decaying(), st.integers(1, 60))
def test_the_tokens_that_run_a_layer_are_a_prefix_of_the_row(
    schedule: ExitSchedule, length: int
) -> None:
    by_budget = {len(plan): set(plan.layers) for plan in schedule.prompt_plans}
    sets = [by_budget[schedule.prompt_budget(index, length)] for index in range(length)]
    sets += [set(schedule.plan(index).layers) for index in range(schedule.horizon + 2)]
    active = schedule.active_lengths(length, schedule.horizon + 2)
    for layer in range(schedule.num_layers):
        runs = [layer in layers for layers in sets]
        assert runs == [position < active[layer] for position in range(len(sets))]
        assert schedule.prompt_prefix(layer, length) == sum(runs[:length])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x:horizon=8,prompt=half", "prompt is 'half'; allowed: full, decay"),
        (
            "constant:max=4,placement=unified,prompt=decay",
            "a prompt token of budget 10 runs layer .*, which one of budget 11 before it did not",
        ),
    ],
)
def test_bad_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text, num_layers=12)


@pytest.mark.parametrize("index", [-1, 3])
def test_positions_outside_the_prompt_are_refused(index: int) -> None:
    with pytest.raises(IndexError, match="allowed: 0 to 2"):
        ExitSchedule.full(2).prompt_budget(index, 3)


def test_layers_skipped_by_last_prompt_token_cache_only_their_prefix() -> None:
    layout = KVLayout(num_heads=2, width=8, dtype="float32")
    memory = SlotMemory(Limits(2, 20, kv_bytes=0), layout, num_layers=6, exact=True)
    schedule = parse_schedule("linear:max=4,min=2,horizon=4,prompt=decay", num_layers=6)
    row = memory.prompt_row((5,) * 10, schedule, 8, range(1))
    assert row.capacities == (17, 0, 0, 11, 13, 17)
    assert memory.scratch_plan([row]).sizes == ((1, 7),)
    first_only = memory.prompt_row((5,) * 10, schedule, 1, range(1))
    assert memory.scratch_plan([first_only]).sizes == ((1, 10),)
