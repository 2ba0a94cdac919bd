"""Drafts by layers change no text, and are right where they run the row's own depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_texts import fields
from layer_draft_requests import KINDS, PENALTIES, SAME, params, run
from random_requests import run_all

from skipdec import Generator, SamplingParams
from skipdec.engines.backends.session import EngineSession
from skipdec.engines.errors import DeviceError, SkipDecError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.scheduling import drafted_decoding, layer_drafter
from skipdec.runtime.scheduling.decoding import Decoding, fed
from skipdec.runtime.scheduling.layer_drafter import LayerDrafter
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.scheduling.stats import EngineStats
from skipdec.runtime.stitching.host.slot_stitcher import HostSlotStitcher
from skipdec.runtime.tokens.logits import HostLogits
from skipdec.runtime.tokens.sampler import Sampler

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

Monkey = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8", kv_dtype="float16")
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        yield generator


SURE = tuple(one for one in KINDS if one.ignore_eos and one.presence_penalty == 0)


def sure_drafts(generator: Generator) -> tuple[list[tuple[object, ...]], list[object]]:
    """Return texts and drafts of rows at the draft's own depth, and of other rows beside them.

    Rows of 30 tokens have room for four of the last seven drafts.
    """
    with generator.running_batch(draft="ends:3,adapt=no,tokens=7") as batch:
        numbers = []
        for index, one in enumerate([*SURE, params(), params(temperature=1, seed=7, **PENALTIES)]):
            schedule = SAME if index < len(SURE) or one.seed else "full"
            numbers.append(batch.add([5 + index, 17, 90, *range(index)], one, schedule=schedule))
        run_all(batch)
        outputs = [each for number in numbers for each in batch.take(number).outputs]
    return [fields(one) for one in outputs], [one.drafts for one in outputs]


def test_drafts_at_a_rows_own_depth_are_always_right(generator: Generator) -> None:
    """Greedy and sampled drafts have the right places, random numbers, positions and rows."""
    _, found = sure_drafts(generator)
    for drafts in found[:-2]:  # the last two run more layers or have penalties
        assert drafts is None or drafts.accepted == drafts.drafted
    assert sum(drafts.drafted for drafts in found[:-2] if drafts) > 80


def _uses_up_random_numbers(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(Sampler, "peek", lambda self, place: self._next_uniform())


def _draws_with_the_previous_number(monkeypatch: Monkey) -> None:
    peek = Sampler.peek
    monkeypatch.setattr(Sampler, "peek", lambda self, place: peek(self, max(0, place - 1)))


def _penalises_drafts(monkeypatch: Monkey) -> None:
    propose = Sampler.propose

    def counting(self: Sampler, logits: np.ndarray, place: int) -> int:
        token = propose(self, logits, place)
        if self._penalties is not None:
            self._penalties.add(token)
        return token

    monkeypatch.setattr(Sampler, "propose", counting)


def _continues_after_a_wrong_draft(monkeypatch: Monkey) -> None:
    def accept(self: Decoding, row: Row, fed: Any, logits: Any, first: int, *rest: Any) -> None:  # noqa: ANN401
        (deltas,) = rest
        for index, plan in enumerate(fed.plans):
            token = logits.sample(first + index, row.sampler)
            deltas.append(row.accept(token, len(plan)))
            wrong = index + 1 < len(fed.tokens) and token.token_id != fed.tokens[index + 1]
            if row.finish_reason is not None or (wrong and index != 1):
                return

    monkeypatch.setattr(Decoding, "accept", accept)


def _takes_the_previous_places_logits(monkeypatch: Monkey) -> None:
    sample = HostLogits.sample
    monkeypatch.setattr(
        HostLogits, "sample", lambda self, row, sampler: sample(self, max(0, row - 1), sampler)
    )


def _begins_one_place_late(monkeypatch: Monkey) -> None:
    def late(row: Row, guesses: Sequence[int] = ()) -> object:
        one = fed(row, guesses)
        return one._replace(position=one.position + 1) if len(one.tokens) > 2 else one

    monkeypatch.setattr(drafted_decoding, "fed", late)


def _drafts_beyond_the_end(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(layer_drafter, "room_of", lambda row: 9)


def _gives_drafts_to_other_rows(monkeypatch: Monkey) -> None:
    propose = LayerDrafter.propose
    monkeypatch.setattr(
        LayerDrafter, "propose", lambda self, rows, *rest: propose(self, rows, *rest)[::-1]
    )


@pytest.mark.parametrize(
    "mutate",
    [
        _uses_up_random_numbers,
        _draws_with_the_previous_number,
        _penalises_drafts,
        _continues_after_a_wrong_draft,
        _takes_the_previous_places_logits,
        _begins_one_place_late,
        _drafts_beyond_the_end,
        _gives_drafts_to_other_rows,
    ],
)
def test_each_mistake_changes_texts_or_acceptance(
    generator: Generator, monkeypatch: Monkey, mutate: Callable[[Monkey], None]
) -> None:
    expected = sure_drafts(generator)
    with monkeypatch.context() as patch:
        mutate(patch)
        try:
            found = sure_drafts(generator)
        except (SkipDecError, IndexError, ValueError, KeyError):  # positions that no row holds
            return
    assert found != expected


@pytest.mark.parametrize("kind", [params(), params(temperature=1, seed=3)])
def test_a_row_that_fails_within_a_pass_keeps_its_earlier_tokens(
    generator: Generator, monkeypatch: Monkey, kind: SamplingParams
) -> None:
    sample = Sampler.sample

    def spoiled(self: Sampler, logits: np.ndarray) -> object:
        is_spoiled = self._params.min_tokens == 7 and self._num_sampled == 6
        return sample(self, np.full_like(logits, np.nan) if is_spoiled else logits)

    kinds = [kind, kind.model_copy(update={"min_tokens": 7}), kind, kind]
    monkeypatch.setattr(Sampler, "sample", spoiled)
    ordinary, _ = run(generator, None, kinds)
    drafted, stats = run(generator, "ends:3,adapt=no,tokens=4", kinds)
    assert [fields(one) for one in drafted] == [fields(one) for one in ordinary]
    assert drafted[1].finish_reason == "error"
    assert len(drafted[1].token_ids) == 6
    assert stats.draft_tokens > 0


def test_nan_in_drafts_changes_no_text(generator: Generator, monkeypatch: Monkey) -> None:
    ordinary, _ = run(generator, None)
    draft = HostSlotStitcher.draft

    def spoiled(self: HostSlotStitcher, rows: Any, plan: Any, **options: Any) -> HostLogits:  # noqa: ANN401
        draft(self, rows, plan, **options)
        return HostLogits(np.full((len(rows), 131), np.nan, np.float32))

    monkeypatch.setattr(HostSlotStitcher, "draft", spoiled)
    drafted, stats = run(generator, "ends:2,adapt=no")
    assert [fields(one) for one in drafted] == [fields(one) for one in ordinary]
    assert stats.draft_tokens > stats.accepted_draft_tokens


def test_an_engine_failure_in_a_draft_step_ends_its_rows(
    generator: Generator, monkeypatch: Monkey
) -> None:
    draft, calls = HostSlotStitcher.draft, []

    def failing(self: HostSlotStitcher, rows: Any, plan: Any, **options: Any) -> HostLogits:  # noqa: ANN401
        calls.append(rows)
        if len(calls) == 4:
            raise DeviceError("layer 0", "is out of order")
        return draft(self, rows, plan, **options)

    monkeypatch.setattr(HostSlotStitcher, "draft", failing)
    with generator.running_batch(draft="ends:3,adapt=no") as batch:
        numbers = [batch.add([5, 6, 7], params(), schedule="full") for _ in range(6)]
        run_all(batch)
        reasons = [batch.take(number).outputs[0].finish_reason for number in numbers]
    assert reasons[0] == "error"
    assert reasons[-1] == "length"


def test_figures_of_draft_steps_add_up(generator: Generator) -> None:
    outputs, stats = run(generator, "ends:3,adapt=no,tokens=4")
    assert stats.draft_steps == stats.draft_tokens > 0 or stats.draft_steps < stats.draft_tokens
    assert stats.draft_tokens == sum(one.drafts.drafted for one in outputs if one.drafts)
    assert 0 < stats.draft_seconds < stats.decode_seconds
    assert EngineStats.total([stats, stats]).draft_steps == 2 * stats.draft_steps
    assert run(generator, None)[1].draft_steps == 0


def test_rows_that_skip_the_drafts_layers_have_no_drafts(generator: Generator) -> None:
    with generator.running_batch(draft="first:3,adapt=no") as batch:
        numbers = [batch.add([5, 6, 7], params(), schedule=one) for one in (SAME, "full")]
        run_all(batch)
        drafts = [batch.take(number).outputs[0].drafts for number in numbers]
    assert drafts[0].drafted == 0 < drafts[1].drafted


def test_drafts_that_no_token_can_use_cause_a_warning(
    generator: Generator, caplog: pytest.LogCaptureFixture
) -> None:
    for schedule, draft in ((SAME, "ends:3"), ("full", "first:3"), (SAME, "own")):
        generator.generate([[5]], params(), schedule=schedule, draft=draft)
    assert not [message for message in caplog.messages if message.startswith("draft ")]
    for _ in range(2):
        generator.generate([[5], [6]], params(), schedule=SAME, draft="own+first:4")
    (message,) = [message for message in caplog.messages if message.startswith("draft ")]
    assert re.search(r"draft first:4 needs layers that schedule .* never runs", message)


def test_engines_are_bound_once_per_shape(generator: Generator, monkeypatch: Monkey) -> None:
    bind, bound = EngineSession.bind, []
    monkeypatch.setattr(EngineSession, "bind", lambda *given: bound.append(0) or bind(*given))
    with generator.running_batch(draft="ends:3,adapt=no,tokens=1") as batch:
        for _ in range(2):
            batch.add([5, 6, 7], params(max_tokens=50), schedule="full")
        counts = []
        while batch.is_busy:
            batch.step()
            counts.append(len(bound))
    assert len(set(counts[5:25])) == 1
