"""Layers draft on a device of host memory as on the CPU, and change no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_texts import fields
from device_generators import Exported, device_of, on_onnxruntime
from draft_layers import write_draft_layer
from layer_draft_requests import KINDS, SCHEDULES, params, run
from machine_devices import DEVICES, open_on
from poisoned_caches import poison_devices
from random_requests import run_all

from skipdec import Generator, SamplingParams
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.drafting.acceptance import Guesses
from skipdec.runtime.scheduling.drafters import RowDrafts
from skipdec.runtime.scheduling.layer_drafter import GoesOn, LayerDrafter, TrainedDrafter
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.stitching.device.rows import StepLayout
from skipdec.runtime.stitching.device.slot_stitcher import DeviceSlotStitcher
from skipdec.runtime.stitching.device.steps import DeviceSteps
from skipdec.runtime.stitching.device.stitcher import DeviceStitcher
from skipdec.runtime.stitching.device.trained import DeviceTrainedDrafts
from skipdec.runtime.stitching.protocol import DraftRow
from skipdec.runtime.stitching.states import FedEntries, HeldStates
from skipdec.runtime.tokens.outputs import CompletionOutput

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

Monkey = pytest.MonkeyPatch
Proposals = list[list[int]]
PLACES: list[dict[str, Any]] = [{"threads": 1}, {"device": "rehearsal"}]


@pytest.fixture(scope="module")
def generator(draft_bundle: Path) -> Iterator[Generator]:
    """Yield a generator of ``draft_bundle`` on a device that counts its operations."""
    bundle, backend = on_onnxruntime(lambda _: draft_bundle, draft_bundle, "pre_norm")
    with Generator(bundle, backend, max_batch_size=4) as generator:
        yield generator


def _watched(
    generator: Generator,
    draft: str,
    schedules: Sequence[str] = ("full",),
    prompt_tokens: int = 4,
    kinds: Sequence[SamplingParams] = KINDS,
) -> tuple[list[CompletionOutput], Proposals]:
    """Return the texts of requests of all kinds, and all proposals for them."""
    proposals: Proposals = []
    propose = LayerDrafter.propose

    def watched(
        self: LayerDrafter, rows: Sequence[RowDrafts], most: int, *goes_on: GoesOn
    ) -> list[Guesses]:
        found = propose(self, rows, most, *goes_on)
        proposals.extend(list(one.tokens) for one in found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerDrafter, "propose", watched)
        outputs, _ = run(generator, draft, kinds, schedules, prompt_tokens)
        return outputs, proposals


@pytest.fixture(scope="module")
def trained_proposals(generator: Generator) -> Proposals:
    """Return the draft layer's proposals without a mutation."""
    return _watched(generator, "trained,adapt=no")[1]


@pytest.mark.parametrize(
    ("draft", "schedules", "options"),
    [
        ("ends:3", SCHEDULES, {}),
        ("trained", ("full",), {"kv_memory": 400_000}),
        ("trained,tokens=4", SCHEDULES, {}),
        ("lookup+trained,tokens=3", ("full", "linear:max=5,min=4,horizon=30"), {}),
    ],
)
def test_texts_and_drafts_equal_the_cpus(
    draft_bundle: Path,
    monkeypatch: Monkey,
    draft: str,
    schedules: Sequence[str],
    options: dict[str, int],
) -> None:
    """Cover sampling, penalties, log-probabilities, skipping, scarce memory full of NaN."""
    with Generator.open(draft_bundle, threads=1, max_batch_size=4) as host:
        ordinary = [fields(one) for one in run(host, None, schedules=schedules)[0]]
        expected, wanted = _watched(host, f"{draft},adapt=no", schedules)
    poison_devices(monkeypatch)
    with Generator.open(draft_bundle, device="rehearsal", max_batch_size=4, **options) as device:
        outputs, proposed = _watched(device, f"{draft},adapt=no", schedules)
        kv_memory = options.get("kv_memory")
        assert kv_memory is None or device.kv_memory.peak <= kv_memory
    assert [fields(one) for one in outputs] == ordinary
    assert sum(map(len, proposed)) > 50
    if kv_memory is None:  # else rows wait and have other neighbours
        assert sorted(proposed) == sorted(wanted)
        assert [one.drafts for one in outputs] == [one.drafts for one in expected]


def test_rows_resume_drafts_after_passes_without_drafts(
    draft_bundle: Path, monkeypatch: Monkey
) -> None:
    """The draft layer leaves out tokens of passes without drafts, as in pauses."""
    reach = TrainedDrafter.reach

    def now_and_then(self: TrainedDrafter, row: Row, most: int) -> int:
        return reach(self, row, most) if len(row.token_ids) % 7 < 3 else 0

    monkeypatch.setattr(TrainedDrafter, "reach", now_and_then)
    found = []
    for place in PLACES:
        with Generator.open(draft_bundle, max_batch_size=2, **place) as generator:
            outputs, proposed = _watched(generator, "trained,adapt=no,tokens=3", SCHEDULES)
            found.append((sorted(proposed), [fields(one) for one in outputs]))
    assert sum(map(len, found[0][0])) > 50
    assert found[0] == found[1]


def test_a_prompt_in_chunks_keeps_its_last_states(draft_bundle: Path) -> None:
    found = []
    for place in PLACES:
        for most in (16, 64):
            options = place | {"max_prefill_tokens": most}
            with Generator.open(draft_bundle, max_batch_size=4, **options) as generator:
                outputs, proposed = _watched(generator, "trained,adapt=no", prompt_tokens=21)
                found.append((sorted(proposed), [fields(one) for one in outputs]))
    assert sum(map(len, found[0][0])) > 50
    assert all(one == found[0] for one in found)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_operators_of_onnxruntime_draft_the_same(
    exported: Exported, checkpoint: Callable[[str], Path], tmp_path: Path, device: str, dtype: str
) -> None:
    """ONNX Runtime's attention takes several tokens of one row at a time."""
    layer = write_draft_layer(tmp_path / "layer", str(checkpoint("pre_norm")))
    bundle = exported("pre_norm", draft_layer=layer, dtype=dtype)
    draft, found = "trained,adapt=no,exact=no,tokens=3", list[Counter[tuple[int, ...]]]()
    for place in ("cpu", device):
        with open_on(bundle, place, max_batch_size=4) as generator:
            proposed = _watched(generator, draft, kinds=(params(),) * 6)[1]
            found.append(Counter(map(tuple, proposed)))
    wanted, held = found[0].total(), (found[0] & found[1]).total()
    assert wanted > 30
    assert held >= 0.8 * wanted, "proposals may differ only by rounding"


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
        # 1, 2, 4 rows by 1, 2, 4 tokens, and by one drafting token; trained drafts also begin
        # with 1, 2, 4 tokens.
        assert device.counts["captures"] - captured <= 3 * (7 if draft == "trained" else 4)


def _gives_logits_to_other_rows(monkeypatch: Monkey) -> None:
    draft = DeviceSlotStitcher.draft_trained

    def swapped(self: DeviceSlotStitcher, rows: Sequence[DraftRow]) -> object:
        return draft(self, rows[::-1])

    monkeypatch.setattr(DeviceSlotStitcher, "draft_trained", swapped)


def _reads_the_states_of_the_next_token(monkeypatch: Monkey) -> None:
    feed = HeldStates.feed

    def late(self: HeldStates[int], rows: Sequence[DraftRow]) -> list[FedEntries[int]]:
        return [
            one if one.states is None else replace(one, states=one.states + 1)
            for one in feed(self, rows)
        ]

    monkeypatch.setattr(HeldStates, "feed", late)


def _reads_the_outputs_of_other_rows(monkeypatch: Monkey) -> None:
    take = HeldStates.take

    def turned(self: HeldStates[int], rows: Sequence[DraftRow], outputs: Sequence[int]) -> None:
        take(self, rows, [*outputs[1:], *outputs[:1]])

    monkeypatch.setattr(HeldStates, "take", turned)


def _keeps_states_of_the_last_layout(monkeypatch: Monkey) -> None:
    keep, first = DeviceTrainedDrafts.keep, list[StepLayout]()

    def stale(self: DeviceTrainedDrafts, steps: DeviceSteps, layout: StepLayout) -> None:
        first.append(layout)
        keep(self, steps, replace(layout, kept=first[max(0, len(first) - 2)].kept))

    monkeypatch.setattr(DeviceTrainedDrafts, "keep", stale)


def _keeps_no_states_of_prompts(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(DeviceTrainedDrafts, "keep_ends", lambda *arguments: None)


def _keeps_one_state_less_deep(monkeypatch: Monkey) -> None:
    reads = DeviceStitcher.reads.fget
    assert reads is not None
    shallow = property(lambda self: tuple(max(1, read - 1) for read in reads(self)))
    monkeypatch.setattr(DeviceStitcher, "reads", shallow)


@pytest.mark.parametrize(
    "mutate",
    [
        _gives_logits_to_other_rows,
        _reads_the_states_of_the_next_token,
        _reads_the_outputs_of_other_rows,
        _keeps_states_of_the_last_layout,
        _keeps_no_states_of_prompts,
        _keeps_one_state_less_deep,
    ],
)
def test_each_mistake_changes_the_proposals(
    generator: Generator,
    trained_proposals: Proposals,
    monkeypatch: Monkey,
    mutate: Callable[[Monkey], None],
) -> None:
    mutate(monkeypatch)
    outputs, proposed = _watched(generator, "trained,adapt=no")
    assert proposed != trained_proposals
    assert len(KINDS) < len(outputs)
