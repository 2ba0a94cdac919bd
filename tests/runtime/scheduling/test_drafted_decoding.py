"""Drafts change no field of any text, whatever the drafter proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from compared_texts import greedy, run_requests, shown
from random_requests import run_all
from text_bundles import STRUCTURE, export_text_bundle, export_with_kernels
from typing_extensions import override

from skipdec import Generator
from skipdec.engines.errors import LogitsError, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.drafting.acceptance import Guesses
from skipdec.runtime.drafting.config import DraftConfig, DraftPart
from skipdec.runtime.drafting.memory import DraftMemory
from skipdec.runtime.schedule import LayerPlan
from skipdec.runtime.scheduling.drafted_decoding import DraftedDecoding
from skipdec.runtime.scheduling.drafters import Drafter, RowDrafts
from skipdec.runtime.stitching.protocol import StepRow
from skipdec.runtime.tokens.sampler import Logits, SampledToken, Sampler

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

ALWAYS = DraftConfig((DraftPart("own"),), adapt=False)

params = partial(greedy, max_tokens=40)
REQUESTS = (
    params(),
    params(temperature=0.9, seed=3, n=2),
    params(max_tokens=2),
    params(max_tokens=1),
    params(temperature=1.2, seed=8, presence_penalty=0.5, repetition_penalty=1.2),
    params(temperature=0.8, seed=9, ignore_eos=False, top_p=0.9),
    params(min_tokens=5, ignore_eos=False, frequency_penalty=0.3),
)


def test_slow_passes_without_guesses_cost_only_their_search() -> None:
    memory = DraftMemory()
    decoding = DraftedDecoding(replace(ALWAYS, adapt=True), [], memory)
    row = StepRow(0, (1,), 5, (LayerPlan((0,)),))
    for seconds in (*[1.0] * 5, *[3.0] * 5):
        decoding.passed([row], seconds, 0.001)
    assert not memory.policy([]).pauses()


@pytest.fixture(scope="module")
def bundle(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("drafted")

    def exported(quantize: str) -> Path:
        directory = folder / quantize
        if directory.exists():
            return directory / "bundle"
        return export_with_kernels(checkpoint(STRUCTURE), directory, quantize)

    return exported


@pytest.fixture(scope="module")
def generator(bundle: Callable[[str], Path]) -> Iterator[Generator]:
    with Generator.open(bundle("int8"), threads=1, max_batch_size=4) as generator:
        yield generator


class RandomDrafter(Drafter):
    """Proposes right tokens, wrong ones, or far too many."""

    source = "random"

    def __init__(self, texts: dict[int, Sequence[int]], seed: int) -> None:
        self._texts = texts
        self._random = Random(seed)

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        return [self._guesses(one) for one in rows]

    def _guesses(self, drafts: RowDrafts) -> Guesses:
        row = drafts.row
        right = self._texts[row.number][len(row.token_ids) :][: self._random.randrange(9)]
        guesses = [*right, *self._random.choices([0, 5], k=self._random.randrange(4))]
        if guesses and self._random.random() < 0.3:
            guesses[self._random.randrange(len(guesses))] = 7
        return Guesses(guesses, (0,) * len(guesses))


@pytest.mark.parametrize("seed", range(2))
def test_random_guesses_change_no_text(generator: Generator, seed: int) -> None:
    ordinary, _ = run_requests(generator, REQUESTS)
    texts = dict(enumerate(one.token_ids for output in ordinary for one in output.outputs))
    drafters = [RandomDrafter(texts, seed)]
    decoding = DraftedDecoding(ALWAYS, drafters, DraftMemory())
    drafted, stats = run_requests(generator, REQUESTS, decoding)
    assert shown(drafted) == shown(ordinary)
    assert 0 < stats.accepted_draft_tokens < stats.draft_tokens


class KnownDrafter(Drafter):
    """Proposes the right tokens."""

    source = "known"

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        nexts = [self._text[len(one.row.token_ids) :][:most] for one in rows]
        return [Guesses(tokens, (0,) * len(tokens)) for tokens in nexts]


def test_right_guesses_of_a_failed_row_are_counted(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary, _ = run_requests(generator, [params()])
    sample, drawn = Sampler.sample, list[None]()

    def fail_at_the_fourth(self: Sampler, logits: Logits) -> SampledToken:
        drawn.append(None)
        if len(drawn) == 4:
            raise LogitsError("logits", "are NaN")
        return sample(self, logits)

    monkeypatch.setattr(Sampler, "sample", fail_at_the_fourth)
    memory, drafter = DraftMemory(), KnownDrafter(ordinary[0].outputs[0].token_ids)
    decoding = DraftedDecoding(ALWAYS, [drafter], memory)
    (failed,), stats = run_requests(generator, [params()], decoding)
    drafts = failed.outputs[0].drafts
    assert drafts is not None
    assert drafts.accepted == len(failed.outputs[0].token_ids) - 1 == 2
    assert stats.accepted_draft_tokens == 2
    assert memory.source("known", drafter.priors).share(0) > drafter.priors[0]


def test_clients_have_separate_ngrams_if_they_have_separate_prefixes(generator: Generator) -> None:
    def accepted(client: str) -> int:
        with generator.running_batch(draft="own,adapt=no", prefix_cache="client") as batch:
            number = batch.add("Once", params(), client=client)
            run_all(batch)
            drafts = batch.take(number).outputs[0].drafts
        assert drafts is not None
        return drafts.accepted

    first = accepted("ann")
    assert accepted("ben") == first, "ann's n-grams are not used for ben"
    assert accepted("ann") > first


def test_a_request_may_not_choose_other_drafts(generator: Generator) -> None:
    with (
        generator.running_batch() as batch,
        pytest.raises(UsageError, match="is 'own'; allowed in a request: off"),
    ):
        batch.add("a", params(), draft="own")


@pytest.mark.parametrize("draft", ["own", "lookup"])
def test_bundles_without_exact_drafts_need_exact_no(
    checkpoint: Callable[[str], Path], tmp_path: Path, draft: str
) -> None:
    path = export_text_bundle(checkpoint(STRUCTURE), tmp_path, quantize="int4", block_size=16)
    with pytest.raises(UsageError, match="those of int4 weights are ONNX Runtime's"):
        Generator.open(path, draft=draft)
    with Generator.open(path, draft=f"{draft},exact=no") as generator:
        assert generator.generate("a", params())[0].outputs[0].drafts is not None
