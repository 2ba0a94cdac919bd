"""Drafts by layers on a device of host memory: they draft as on the CPU, and change no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from compared_texts import fields
from device_generators import Exported, device_of, on_onnxruntime, on_tensorrt
from layer_draft_requests import KINDS, SCHEDULES, params, run
from poisoned_caches import poison_devices
from random_requests import run_all

from skipdec import Generator, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.drafting.acceptance import Guesses
from skipdec.runtime.schedule.plan import LayerPlan
from skipdec.runtime.scheduling.drafters import RowDrafts
from skipdec.runtime.scheduling.layer_drafter import LayerDrafter, TrainedDrafter
from skipdec.runtime.stitching.device.drafts import DeviceDrafts
from skipdec.runtime.stitching.device.slot_stitcher import DeviceSlotStitcher
from skipdec.runtime.stitching.protocol import DraftRow
from skipdec.runtime.tokens.outputs import CompletionOutput

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

Monkey = pytest.MonkeyPatch
Proposals = list[list[int]]


@pytest.fixture(scope="module")
def generator(drafted: Path) -> Iterator[Generator]:
    """A generator of ``drafted`` on a device that counts what it does."""
    bundle, backend = on_onnxruntime(lambda _: drafted, drafted, "pre_norm")
    with Generator(bundle, backend, max_batch_size=4) as generator:
        yield generator


def _watched(
    generator: Generator, draft: str, schedules: Sequence[str] = ("full",)
) -> tuple[list[CompletionOutput], Proposals]:
    """Return the texts of requests of all kinds, and everything that was proposed for them."""
    proposals: Proposals = []
    propose = LayerDrafter.propose

    def watched(self: LayerDrafter, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        found = propose(self, rows, most)
        proposals.extend(list(one.tokens) for one in found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerDrafter, "propose", watched)
        return run(generator, draft, schedules=schedules)[0], proposals


@pytest.fixture(scope="module")
def trained(generator: Generator) -> Proposals:
    """Return what the draft layer proposes without a mistake."""
    return _watched(generator, "trained,adapt=no")[1]


@pytest.mark.parametrize(
    ("draft", "schedules", "kv_memory"),
    [
        ("ends:3", SCHEDULES, None),
        ("trained", ("full",), 400_000),
        ("trained,tokens=4", ("full", "linear:max=5,min=4,horizon=30"), None),
    ],
)
def test_texts_and_drafts_are_the_cpus(
    drafted: Path,
    monkeypatch: Monkey,
    draft: str,
    schedules: Sequence[str],
    kv_memory: int | None,
) -> None:
    """Greedy and sampled, penalties, log-probabilities, skipping; short memory, all of it NaN."""
    with Generator.open(drafted, threads=1, max_batch_size=4) as host:
        ordinary = [fields(one) for one in run(host, None, schedules=schedules)[0]]
        expected, wanted = _watched(host, f"{draft},adapt=no", schedules)
    poison_devices(monkeypatch)
    with Generator.open(
        drafted, device="rehearsal", max_batch_size=4, kv_memory=kv_memory
    ) as device:
        outputs, proposed = _watched(device, f"{draft},adapt=no", schedules)
        assert kv_memory is None or device.kv_memory.peak <= kv_memory
    assert [fields(one) for one in outputs] == ordinary
    assert sum(map(len, proposed)) > 50
    if kv_memory is None:  # else rows wait, and draft beside others
        assert sorted(proposed) == sorted(wanted)
        assert [one.drafts for one in outputs] == [one.drafts for one in expected]


@pytest.mark.parametrize("draft", ["ends:3", "trained", "first:2"])
def test_the_steady_state_is_a_launch_per_step_and_allocates_nothing(
    generator: Generator, draft: str
) -> None:
    device, one = device_of(generator), params(max_tokens=40, logprobs=None)
    captured = device.counts["captures"]
    with generator.running_batch(draft=f"{draft},adapt=no,tokens=3") as engine:
        for _ in range(3):
            before, stats = Counter(device.counts), engine.stats()
            for index in range(4):
                engine.add([5 + index, 6], one, schedule="full")
            run_all(engine)
            moved = device.counts - before
        now = engine.stats()
        steps = now.steps - stats.steps + now.draft_steps - stats.draft_steps
        assert now.draft_steps > stats.draft_steps > 10
        assert moved["graph_launches"] == steps
        assert {"allocate", "pinned", "captures"}.isdisjoint(moved)
        # 1, 2, 4 rows by 1, 2, 4 tokens, and by one token that drafts
        assert device.counts["captures"] - captured <= 3 * 4


@pytest.mark.parametrize("draft", ["ends:2", "trained"])
def test_plans_of_tensorrt_refuse_drafts_by_layers_by_name(
    exported: Exported, tmp_path: Path, draft: str
) -> None:
    bundle, backend = on_tensorrt(exported, tmp_path, "pre_norm")
    with (
        Generator(bundle, backend) as generator,
        pytest.raises(UsageError, match="TensorRT's plans are built for one"),
    ):
        generator.generate([[5, 6]], draft=f"{draft},exact=no")


def _gives_logits_to_other_rows(monkeypatch: Monkey) -> None:
    run_drafts = DeviceDrafts.run

    def swapped(self: DeviceDrafts, rows: Sequence[DraftRow], plan: LayerPlan) -> object:
        return run_drafts(self, rows[::-1], plan)

    monkeypatch.setattr(DeviceDrafts, "run", swapped)


def _shows_the_draft_layer_nothing(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(TrainedDrafter, "_show", lambda self, drafts: None)


def _shows_the_text_a_position_late(monkeypatch: Monkey) -> None:
    follow = DeviceSlotStitcher.follow

    def late(
        self: DeviceSlotStitcher, row: int, tokens: Sequence[int], start: int, plan: LayerPlan
    ) -> None:
        follow(self, row, tokens[:-1], start + 1, plan)

    monkeypatch.setattr(DeviceSlotStitcher, "follow", late)


@pytest.mark.parametrize(
    "mutate",
    [
        _gives_logits_to_other_rows,
        _shows_the_draft_layer_nothing,
        _shows_the_text_a_position_late,
    ],
)
def test_a_wrong_draft_is_seen_in_what_is_proposed(
    generator: Generator,
    trained: Proposals,
    monkeypatch: Monkey,
    mutate: Callable[[Monkey], None],
) -> None:
    mutate(monkeypatch)
    outputs, proposed = _watched(generator, "trained,adapt=no")
    assert proposed != trained
    assert len(KINDS) < len(outputs)
