"""Requests are cut into batches that fit, before any work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skipdec.engines.errors import CapacityError
from skipdec.runtime.batches.planning import BatchLimits, PlannedBatch, plan_batches, prefill_groups
from skipdec.runtime.batches.requests import Request
from skipdec.runtime.kv.layout import KVLayout
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.tokens.sampling import SamplingParams

SKIPPING = ExitSchedule(
    num_layers=2, max_exit_layer=1, min_exit_layer=1, warmup_layers=0, horizon=1
)
LAYOUT = KVLayout(num_heads=2, width=8, dtype="float32")


def requests(*lengths: int, n: int = 1, max_tokens: int = 10) -> list[Request]:
    params = SamplingParams(n=n, max_tokens=max_tokens)
    return [
        Request(index, None, (5,) * length, params, max_tokens)
        for index, length in enumerate(lengths)
    ]


def plan(
    wanted: list[Request], *, max_batch_size: int = 8, kv_limit: int = 2**40
) -> list[PlannedBatch]:
    return plan_batches(
        wanted,
        [ExitSchedule.full(2)] * len(wanted),
        LAYOUT,
        BatchLimits(max_batch_size, 100, max_batch_size, kv_limit),
    )


def test_rows_of_like_length_stand_together() -> None:
    batches = plan(requests(3, 90, 4, 80), max_batch_size=2)
    lengths = [[len(row.request.prompt_token_ids) for row in batch.rows] for batch in batches]
    assert lengths == [[90, 80], [4, 3]]


def test_every_completion_is_planned_once() -> None:
    batches = plan(requests(5, 5, 5, n=3), max_batch_size=4)
    rows = [(row.request.index, row.output_index) for batch in batches for row in batch.rows]
    assert sorted(rows) == [(i, j) for i in range(3) for j in range(3)]
    assert max(len(batch.rows) for batch in batches) == 4


def test_only_rows_of_one_schedule_stand_together() -> None:
    schedules = [ExitSchedule.full(2), SKIPPING, ExitSchedule.full(2)]
    batches = plan_batches(requests(4, 4, 4), schedules, LAYOUT, BatchLimits(8, 100, 8, 2**40))
    assert [(batch.schedule, [row.request.index for row in batch.rows]) for batch in batches] == [
        (ExitSchedule.full(2), [0, 2]),
        (SKIPPING, [1]),
    ]


def test_each_prompt_runs_once_in_groups_for_which_scratch_memory_is_planned() -> None:
    wanted = [
        *requests(100, n=2),
        *(replace(r, index=r.index + 1) for r in requests(100, *[40] * 5)),
    ]
    schedules = [SKIPPING] * len(wanted)
    (batch,) = plan_batches(wanted, schedules, LAYOUT, BatchLimits(8, 205, 8, 2**40))
    assert [row.request.index for row in batch.rows] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert (batch.num_prompts, batch.prefill_groups) == (7, ((0, 2), (2, 7)))
    assert batch.kv_plan.scratch_rows == 5


def test_memory_limits_a_batch_before_its_size_does() -> None:
    alone = plan(requests(100))[0].kv_plan.nbytes
    batches = plan(requests(100, 100, 100, 100, 100), kv_limit=int(2.3 * alone))
    assert [len(batch.rows) for batch in batches] == [2, 2, 1]
    assert all(batch.kv_plan.nbytes <= 2.3 * alone for batch in batches)


def test_one_row_too_large_is_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError, match=r"prompt 1 .* 500 tokens and max_tokens 10 .* 9,000"):
        plan(requests(5, 500), kv_limit=9000)


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([5], [(0, 1)]),
        ([5, 5, 5, 20, 3], [(0, 2), (2, 3), (3, 4), (4, 5)]),
        ([1] * 12, [(0, 12)]),
        ([13, 1], [(0, 1), (1, 2)]),
    ],
)
def test_prompts_run_in_groups_of_bounded_padded_size(
    lengths: list[int], groups: list[tuple[int, int]]
) -> None:
    assert prefill_groups(lengths, max_tokens=12, max_rows=12) == groups


def test_a_prefill_call_has_bounded_rows() -> None:
    assert prefill_groups([1] * 5, max_tokens=12, max_rows=2) == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_steps_on_a_device_are_padded_to_few_row_counts(rows: int, padded: int) -> None:
    assert BatchLimits(6, 100, 6, 1, pads_rows=True).padded_rows(rows) == padded
    assert BatchLimits(6, 100, 6, 1).padded_rows(rows) == rows
