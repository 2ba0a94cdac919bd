"""Draft steps leave no trace: passes after them give the same bits as without drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from known_tokens import (
    PLANS,
    TEXTS,
    Bits,
    Drafting,
    FedStitcher,
    bits_alone,
    fed_stitcher,
    known_bits,
    together,
)
from poisoned_caches import poison_caches, poison_devices

from skipdec import UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.kv.cache import SlotCache
from skipdec.runtime.schedule.plan import LayerPlan
from skipdec.runtime.stitching.device.slot_stitcher import DeviceSlotStitcher
from skipdec.runtime.stitching.host.buffers import StepBuffers
from skipdec.runtime.stitching.host.slot_stitcher import HostSlotStitcher
from skipdec.runtime.stitching.protocol import DraftRow, StepRow
from skipdec.runtime.stitching.slot_stitcher import SlotStitcher

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@needs_kernels
@pytest.mark.parametrize(
    ("structure", "quantize", "kv_dtype"),
    [
        ("pre_norm", "int8", "float16"),
        ("pre_norm", "int4", "bfloat16"),
        ("post_norm", "int8", "float32"),
        ("no_bias", "int8", "int8"),
        ("untied", "int8-block", "float16"),
    ],
)
def test_passes_after_drafts_have_the_hosts_bits_without_drafts(
    exported: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    structure: str,
    quantize: str,
    kv_dtype: str,
) -> None:
    """Check the contract of stitchers with NaN in unused memory and drafts by any layers."""
    bundle = exported(structure, kernels="skipdec", quantize=quantize, kv_dtype=kv_dtype)
    with fed_stitcher(bundle) as stitcher:
        wanted = bits_alone(stitcher)
    for device, poison, widths in (
        ("cpu", poison_caches, (1, 4)),
        ("rehearsal", poison_devices, (3,)),
    ):
        with monkeypatch.context() as patch:
            poison(patch)
            with fed_stitcher(bundle, device=device) as stitcher:
                for width in widths:
                    drafting = Drafting(stitcher, seed=width)
                    operations = together(TEXTS, width, seed=width)
                    assert known_bits(TEXTS, operations, drafting.run(operations)) == wanted
                    assert drafting.drafted > 100


def test_drafts_on_operators_of_onnxruntime_leave_no_trace(exported: Callable[..., Path]) -> None:
    operations = together(TEXTS, 1, seed=4)
    with fed_stitcher(exported("pre_norm")) as stitcher:
        wanted = stitcher.run(operations)
        assert Drafting(stitcher, seed=4).run(operations) == wanted


Draft = Callable[[SlotStitcher, Sequence[DraftRow], LayerPlan], object]


def _changes_drafts(monkeypatch: pytest.MonkeyPatch, change: Callable[[Draft], Draft]) -> None:
    for kind in (HostSlotStitcher, DeviceSlotStitcher):
        monkeypatch.setattr(kind, "draft", change(kind.draft))


def _writes_a_position_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows that do not draft overwrite their last position."""
    length = SlotCache.length

    def changed(run: Draft) -> Draft:
        def early(self: SlotStitcher, rows: Sequence[DraftRow], plan: LayerPlan) -> object:
            drafting = {row.row for row in rows}
            with monkeypatch.context() as patch:
                patch.setattr(
                    SlotCache, "length", lambda self, row: length(self, row) - (row not in drafting)
                )
                return run(self, rows, plan)

        return early

    _changes_drafts(monkeypatch, changed)


def _leaves_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(run: Draft) -> Draft:
        def leaving(self: SlotStitcher, rows: Sequence[DraftRow], plan: LayerPlan) -> object:
            for row in rows:
                self._leave_bypassed(StepRow(row.row, (row.token,), row.position, (plan,)))
            return run(self, rows, plan)

        return leaving

    _changes_drafts(monkeypatch, changed)


def _ignores_changes_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the routes and layouts of other rows in other slots."""
    monkeypatch.setattr(SlotCache, "version", property(lambda self: 0, lambda self, _: None), False)


@pytest.mark.parametrize(
    "mutate",
    [
        _writes_a_position_early,
        _leaves_layers,
        _ignores_changes_of_slots,
    ],
)
@pytest.mark.parametrize("stitcher", ["cpu", "rehearsal"], indirect=True)
def test_each_mistake_leaves_a_trace_in_the_bits(
    stitcher: FedStitcher,
    stitcher_bits: Bits,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
) -> None:
    operations = together(TEXTS, 3, seed=3)
    with monkeypatch.context() as patch:
        mutate(patch)
        try:
            found = known_bits(TEXTS, operations, Drafting(stitcher, seed=3).run(operations))
        except (AssertionError, KeyError, UsageError):  # other logits, or missing rows
            found = {}
        finally:
            stitcher.slots.reset()
    assert found != stitcher_bits


FULL = LayerPlan(tuple(range(6)))


def begin(stitcher: FedStitcher, *max_tokens: int) -> None:
    for row, count in enumerate(max_tokens):
        one = {"row": row, "tokens": [5, 6, 7], "schedule": "full", "max_tokens": count}
        stitcher.run([{"begin": one}])


@pytest.mark.parametrize("plan", PLANS)
def test_a_draft_step_has_the_bits_of_a_pass_of_its_layers(
    stitcher: FedStitcher, plan: LayerPlan
) -> None:
    """The first token only sees the prompt's keys, which all layers have."""
    try:
        begin(stitcher, 9, 9, 9)
        drafts = stitcher.slots.draft([DraftRow(2, 11, 3), DraftRow(0, 8, 3)], plan)
        found = [drafts.logits[index].copy() for index in range(2)]
        tokens = {2: 11, 1: 9, 0: 8}
        steps = stitcher.slots.step([StepRow(row, (tokens[row],), 3, (plan,)) for row in (2, 0, 1)])
        np.testing.assert_array_equal(found, [steps.logits[index] for index in range(2)])
    finally:
        stitcher.slots.reset()


def test_rows_that_do_not_draft_write_within_their_positions(
    stitcher: FedStitcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that leaves a layer in its next pass must not write a position there."""
    set_rows, written = StepBuffers.set_rows, []

    def noted(
        self: StepBuffers, starts: Sequence[int], counts: Sequence[int], *, is_split: bool
    ) -> None:
        written.append(list(starts))
        set_rows(self, starts, counts, is_split=is_split)

    monkeypatch.setattr(StepBuffers, "set_rows", noted)
    schedule = stitcher.schedule("linear:max=5,min=2,horizon=4")
    assert len(schedule.plan(1)) < len(schedule.plan(0))
    try:
        begin(stitcher, 20)
        one = {"row": 1, "tokens": [5, 6, 7], "schedule": "linear:max=5,min=2,horizon=4"}
        stitcher.run([{"begin": one | {"max_tokens": 9}}])
        stitcher.step([StepRow(0, (8,), 3, (FULL,)), StepRow(1, (8,), 3, (schedule.plan(0),))])
        stitcher.slots.draft([DraftRow(0, 8, 4)], FULL)
    finally:
        stitcher.slots.reset()
    assert [4, 3] in written
    assert [4, 4] in written


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (DraftRow(0, 8, 2), "drafts at position 2; allowed: 3 to 4"),
        (DraftRow(0, 8, 5), "drafts at position 5; allowed: 3 to 4"),
        (DraftRow(7, 8, 3), "drafts with layer 0, which it left"),
    ],
)
@pytest.mark.parametrize("stitcher", ["cpu", "rehearsal"], indirect=True)
def test_tokens_that_cannot_be_drafted_from_are_refused(
    stitcher: FedStitcher, row: DraftRow, problem: str
) -> None:
    try:
        begin(stitcher, 3)
        with pytest.raises(UsageError, match=problem):
            stitcher.slots.draft([row], FULL)
        stitcher.step([StepRow(0, (8,), 3, (FULL,))])  # the refusal changed nothing
    finally:
        stitcher.slots.reset()


def test_draft_steps_are_bound_once(stitcher: FedStitcher) -> None:
    try:
        begin(stitcher, 40, 40)
        rows = [DraftRow(0, 8, 3), DraftRow(1, 9, 3)]
        stitcher.slots.draft(rows, PLANS[2])
        assert stitcher.slots.has_found_route
        for _ in range(3):
            stitcher.slots.draft(rows, PLANS[2])
            assert not stitcher.slots.has_found_route
    finally:
        stitcher.slots.reset()


def test_a_draft_step_is_repeated_after_steps_of_a_thousand_other_sizes(
    exported: Callable[..., Path],
) -> None:
    """Heads are bound for each number of rows and of rows that draft; old ones are released."""
    num_rows, repeated = 45, 34  # the 1,024th pair of both numbers
    drafting = [DraftRow(row, 8, 3) for row in range(num_rows)]
    with fed_stitcher(exported("pre_norm"), max_rows=num_rows) as stitcher:
        for row in range(num_rows):
            one = {"row": row, "tokens": [5, 6, 7], "schedule": "full", "max_tokens": 4}
            stitcher.run([{"begin": one}])
            for count in range(1, row + 2):
                stitcher.slots.draft(drafting[:count], PLANS[2])
        logits = stitcher.slots.draft(drafting[:repeated], PLANS[2]).logits
        np.testing.assert_array_equal(logits[0], logits[repeated - 1])
