"""libskipdec drafts the same tokens as Python, and drafts change no text."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_documents import add_ngrams
from drafted_requests import ALONE, BASE, drafts_of, draw_prompt, of_every_kind
from runtimes import NativeRuntime, TimedRequest, both, run_native

from skipdec import Generator, SamplingParams
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.drafting.known_ngrams import count_ngrams, ngrams_json

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

SCHEDULES = ("full", "linear:max=5,min=2,horizon=12")
PROMPTS = [draw_prompt(length) for length in (6, 1)]


def requests_for(schedule: str) -> list[TimedRequest]:
    """Return requests of every kind twice, so that n-grams know the texts of the second half."""
    return of_every_kind(PROMPTS, schedule) * 2


@pytest.fixture(scope="module")
def bundle(exported: Callable[..., Path]) -> Path:
    return exported("pre_norm", kernels="skipdec", quantize="int8")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("draft", ["own", "lookup", "own+lookup,tokens=3"])
def test_both_draft_the_same_tokens(bundle: Path, schedule: str, draft: str) -> None:
    fixed = f"{draft},adapt=no"
    with both(bundle) as (python, _):
        ordinary = python.run(requests_for(schedule))
    with both(bundle, draft=fixed) as (python, native):
        expected = python.run(requests_for(schedule))
        given = native.run(requests_for(schedule), draft=fixed)
    assert given == expected == ordinary
    assert drafts_of(given) == drafts_of(expected)
    if draft != "lookup":  # random weights seldom repeat phrases
        assert sum(accepted for _, _, accepted in drafts_of(given)) > 200


def test_both_start_with_the_ngrams_of_the_bundle(bundle: Path, tmp_path: Path) -> None:
    with both(bundle) as (python, _):
        ordinary = python.run(requests_for("full"))
    texts = [(one.token_ids, 1) for answer in ordinary for one in answer]
    with_ngrams = Path(shutil.copytree(bundle, tmp_path / "with_ngrams"))
    add_ngrams(with_ngrams, ngrams_json(count_ngrams(texts)))
    fixed = "own,adapt=no"
    num_passes: list[list[int]] = []
    for each in (bundle, with_ngrams):
        with both(each, draft=fixed) as (python, native):
            expected = python.run(requests_for("full"))
            given = native.run(requests_for("full"), draft=fixed)
        assert given == expected == ordinary
        assert drafts_of(given) == drafts_of(expected)
        num_passes.append([passes for passes, _, _ in drafts_of(given)[:4]])
    assert sum(num_passes[1]) < sum(num_passes[0])


def test_drafts_of_all_planned_layers_are_always_accepted(bundle: Path) -> None:
    native = NativeRuntime(bundle, 6)
    schedule = "constant:max=3"  # layers 0, 4 and 5
    kinds = ({}, {"temperature": 0.8, "seed": 2, "n": 2}, {"temperature": 1.5, "seed": 3})
    requests = [
        TimedRequest([5, 6, 7], BASE.model_copy(update=kind | {"max_tokens": 33}), schedule)
        for kind in kinds
    ]
    drafted = native.run(requests, draft="ends:3,adapt=no", max_batch_size=4)
    assert drafted == native.run(requests)
    assert drafts_of(drafted) == [(4, 28, 28)] * 4


@pytest.mark.parametrize("stop", [("e", "st"), ("a", "ab", " ")])
def test_stop_strings_cut_texts_within_a_drafted_pass(
    text_bundle: Path, stop: tuple[str, ...]
) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.5, seed=3, stop=stop)
    requests = [TimedRequest(text, params, after=ALONE) for text in ("naïve café", "a stop")] * 3
    native = NativeRuntime(text_bundle, 6, 4)
    drafted = native.run(requests, draft="own,adapt=no,exact=no")
    assert drafted == native.run(requests)
    assert sum(accepted for _, _, accepted in drafts_of(drafted)) > 0


def lines(*params: dict[str, Any]) -> list[dict[str, Any]]:
    common = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    return [{"prompt": [5, 6], "params": common | each, "after": ALONE} for each in params]


def test_a_request_may_switch_drafts_off(bundle: Path) -> None:
    answers = run_native(bundle, lines({}, {}, {"draft": "off"}), draft="own,adapt=no")
    _, again, off = (answer["outputs"][0] for answer in answers)
    assert again["drafts"][1] > 0
    assert off["drafts"] == [23, 0, 0]
    assert off["token_ids"] == again["token_ids"]


def test_both_mark_the_same_tokens_as_drafted(bundle: Path) -> None:
    sampled: dict[str, Any] = {"temperature": 0.3, "seed": 1}
    kinds: tuple[dict[str, Any], ...] = ({}, sampled, {"max_tokens": 9}, {}, sampled)
    with Generator.open(bundle, threads=1, draft="own,adapt=no") as generator:
        expected = [
            [
                delta.drafted
                for delta in generator.stream([[5, 6]], BASE.model_copy(update=kind))
                for _ in delta.token_ids
            ]
            for kind in kinds
        ]
    answers = run_native(bundle, lines(*kinds), draft="own,adapt=no")
    made = [answer["outputs"][0] for answer in answers]
    assert [one["drafted"] for one in made] == expected
    assert [sum(one["drafted"]) for one in made] == [one["drafts"][2] for one in made]
    assert sum(map(sum, expected)) > 20


def test_clients_with_separate_prefix_caches_have_separate_ngrams(bundle: Path) -> None:
    requests = lines({"client": "a"}, {"client": "b"}, {"client": "a"})
    answers = run_native(bundle, requests, draft="own,adapt=no", prefix_cache=2)
    first, other, again = (answer["outputs"][0]["drafts"] for answer in answers)
    assert other == first
    assert again[0] < first[0]
