"""The tests of drafts can fail: each single mistake changes texts or figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import pytest
from random_requests import run_all
from text_bundles import STRUCTURE, export_with_kernels
from typing_extensions import override

from skipdec import Generator, SamplingParams
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.drafting.acceptance import Guesses
from skipdec.runtime.drafting.config import DraftConfig, DraftPart
from skipdec.runtime.drafting.memory import DraftMemory
from skipdec.runtime.scheduling import decoding as decoding_module
from skipdec.runtime.scheduling import drafted_decoding
from skipdec.runtime.scheduling.drafted_decoding import DraftedDecoding
from skipdec.runtime.scheduling.drafters import Drafter, RowDrafts
from skipdec.runtime.scheduling.loaded_bundle import RunningBatchConfig
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.stitching.protocol import StepRow
from skipdec.runtime.tokens.logits import StepLogits
from skipdec.runtime.tokens.outputs import Drafts, StreamDelta

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

REQUESTS = [
    ("The quick", {"temperature": 0}),
    ("Once upon", {"temperature": 0.9, "seed": 3}),
    ("skip", {"temperature": 0.7, "seed": 4, "frequency_penalty": 2}),
    ("decode", {"temperature": 0, "frequency_penalty": 2, "presence_penalty": 2}),
]
Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def generator(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Generator]:
    bundle = export_with_kernels(checkpoint(STRUCTURE), tmp_path_factory.mktemp("mutations"))
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        yield generator


class Known(Drafter):
    """Proposes six tokens of the row's own text; in some windows the second is wrong."""

    source = "known"

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = texts

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        return [Guesses.alike(self._guesses(one.row)) for one in rows]

    def _guesses(self, row: Row) -> list[int]:
        written = len(row.token_ids)
        guesses = list(self._texts[row.number][written : written + 6])
        if written % 4 == 1 and len(guesses) > 1:
            later = next((token for token in guesses[2:] if token != guesses[1]), 9)
            guesses[1] = later if later != guesses[1] else 8
        return guesses


class Outcome(tuple[tuple[tuple[int, ...], object, Drafts | None], ...]):
    """Tokens, log-probabilities and figures of every text."""


def run(generator: Generator, decoding: DraftedDecoding | None = None) -> Outcome:
    with generator.running_batch(prefix_cache=False) as held:
        batch = RunningBatch(held._loaded, held._slots, RunningBatchConfig(), decoding)
        numbers = [
            batch.add(
                prompt,
                SamplingParams.model_validate(
                    {"max_tokens": 24, "ignore_eos": True, "logprobs": 0} | options
                ),
                schedule="full",
            )
            for prompt, options in REQUESTS
        ]
        run_all(batch)
        outputs = [batch.take(number).outputs[0] for number in numbers]
    return Outcome((one.token_ids, one.logprobs, one.drafts) for one in outputs)


def drafted(generator: Generator, texts: Sequence[Sequence[int]]) -> Outcome:
    config = DraftConfig((DraftPart("own"),), adapt=False)
    vocab_size = generator.model.vocab_size
    decoding = DraftedDecoding(config, [Known(texts)], DraftMemory(), vocab_size)
    return run(generator, decoding)


def accept_with(
    *, offset: int = 0, row_offset: int = 0, goes_on: bool = False, counts_wrong: bool = False
) -> Callable[..., None]:
    """Return `Decoding.accept` with one mistake."""

    def accept(
        self: DraftedDecoding,
        row: Row,
        fed: StepRow,
        logits: StepLogits,
        first: int,
        step_start: float | None,
        deltas: list[StreamDelta],
    ) -> None:
        for index, plan in enumerate(fed.plans):
            place = max(0, first + index - offset * (index > 0)) + row_offset * (index > 0)
            token = logits.sample(place, row.sampler)
            deltas.append(row.accept(token, len(plan), step_start=step_start))
            if row.finish_reason is not None or index + 1 == len(fed.tokens):
                return
            guess = fed.tokens[index + 1]
            if token.token_id != guess:
                penalties = row.sampler._penalties
                if counts_wrong and penalties is not None:
                    penalties.add(guess)
                if not (goes_on and index == 1):
                    return
            step_start = perf_counter()

    return accept


def patch_accept(**mistake: int | bool) -> Mutate:
    return lambda patch: patch.setattr(
        decoding_module.Decoding,
        "accept",
        accept_with(**mistake),  # type: ignore[arg-type]
    )


def give_drafts_to_another(patch: pytest.MonkeyPatch) -> None:
    draft = DraftedDecoding._draft

    def rotated(self: DraftedDecoding, rows: Sequence[Row]) -> object:
        found = draft(self, rows)
        values = list(found.values())
        return dict(zip(found, values[1:] + values[:1], strict=True))

    patch.setattr(DraftedDecoding, "_draft", rotated)


def draft_beyond_the_tokens_left(patch: pytest.MonkeyPatch) -> None:
    def uncapped(row: Row, guesses: Sequence[int] = ()) -> StepRow:
        index = len(row.token_ids) - 1
        kept = (row.token_ids[-1], *guesses)
        plans = tuple(row.schedule.plan(index + offset) for offset in range(len(kept)))
        return StepRow(row.number, kept, row.num_positions, plans)

    patch.setattr(drafted_decoding, "fed", uncapped)
    patch.setattr(drafted_decoding, "room_of", lambda row: 7)


MUTATIONS: dict[str, Mutate] = {
    "drafts are not capped at the tokens left": draft_beyond_the_tokens_left,
    "a rejected token is counted by penalties": patch_accept(counts_wrong=True),
    "logits are read at another row's place": patch_accept(row_offset=1),
    "drafts of one row are given to another": give_drafts_to_another,
    "goes on behind a wrong second draft": patch_accept(goes_on=True),
    "takes the logits of the place before": patch_accept(offset=1),
}


@pytest.fixture(scope="module")
def ordinary(generator: Generator) -> Outcome:
    return run(generator)


@pytest.fixture(scope="module")
def unchanged(generator: Generator, ordinary: Outcome) -> Outcome:
    return drafted(generator, [tokens for tokens, *_ in ordinary])


def test_without_a_mistake_texts_are_equal_and_right_drafts_held(
    ordinary: Outcome, unchanged: Outcome, monkeypatch: pytest.MonkeyPatch, generator: Generator
) -> None:
    assert [one[:2] for one in unchanged] == [one[:2] for one in ordinary]
    assert all(figures and figures.tokens_per_pass > 2 for *_, figures in unchanged)
    patch_accept()(monkeypatch)
    assert drafted(generator, [tokens for tokens, *_ in ordinary]) == unchanged


@pytest.mark.parametrize("mistake", MUTATIONS)
def test_a_mistake_changes_texts_or_figures(
    mistake: str,
    generator: Generator,
    ordinary: Outcome,
    unchanged: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    MUTATIONS[mistake](monkeypatch)
    try:
        found = drafted(generator, [tokens for tokens, *_ in ordinary])
    except Exception as error:  # noqa: BLE001  (an engine may refuse what a mistake asks for)
        assert not isinstance(error, (TypeError, AttributeError, KeyError))  # noqa: PT017
    else:
        assert found != unchanged
