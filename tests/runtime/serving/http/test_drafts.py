"""A server that drafts writes the same texts and counts drafts in answers and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_servers import ROWS, Running, in_thread, serving

from skipdec import Generator
from skipdec.engines.errors import UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.serving.http.server import ServedBundle
from skipdec.runtime.serving.process.settings import WorkerSettings

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

DRAFT = "own+lookup,adapt=no"
COUNTS = ("passes", "draft_tokens", "accepted_draft_tokens")
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": "Once", "temperature": 0},
    {"prompt": ["a", "bcd"], "n": 2, "temperature": 0.9, "seed": 3, "logprobs": 2},
    {"prompt": "skip", "temperature": 1.1, "seed": 8, "presence_penalty": 0.5, "schedule": "full"},
    {"prompt": "one", "max_tokens": 1, "temperature": 0},
    {"prompt": "end", "temperature": 0.8, "seed": 5, "ignore_eos": False, "stop": ["e"]},
)
LENGTH = {"max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def drafting(bundle: Path) -> Iterator[Running]:
    def opened(path: Path) -> Generator:
        return Generator.open(path, threads=1, max_batch_size=ROWS, draft=DRAFT)

    with serving(ServedBundle("tiny", bundle), open_engine=in_thread(opened)) as running:
        yield running


def events(running: Running, **fields: object) -> list[dict[str, Any]]:
    """Return the documents of a stream, which ends with its usage."""
    options = {"include_usage": True}
    text = running.complete(**fields, stream=True, stream_options=options).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def joined(documents: list[dict[str, Any]], field: str) -> dict[int, Any]:
    """Return a field's joined pieces by completion."""
    found: dict[int, Any] = {}
    for choice in (one for document in documents for one in document["choices"]):
        index = choice["index"]
        found[index] = found[index] + choice[field] if index in found else choice[field]
    return found


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body["prompt"]))
def test_drafts_do_not_change_answers(
    server: Running, drafting: Running, body: dict[str, Any]
) -> None:
    body = LENGTH | body
    expected = server.complete(**body).json()["choices"]
    for _ in range(2):  # the second time with n-grams of the first
        assert drafting.complete(**body).json()["choices"] == expected
    streamed = events(drafting, **body)
    assert joined(streamed, "text") == {one["index"]: one["text"] for one in expected}
    layers = {one["index"]: one["layers_per_token"] for one in expected}
    assert joined(streamed, "layers_per_token") == layers


def test_usage_counts_passes_and_drafts_whole_and_streamed(drafting: Running) -> None:
    body = LENGTH | {"prompt": "Twice upon", "n": 2, "seed": 4}
    drafting.complete(**body)
    documents = events(drafting, **body)
    used = documents[-1]["usage"]
    assert used["passes"] + used["accepted_draft_tokens"] == used["completion_tokens"] - 2
    assert 0 < used["accepted_draft_tokens"] <= used["draft_tokens"]
    marks = joined(documents, "drafted")
    assert sum(map(sum, marks.values())) == used["accepted_draft_tokens"]
    assert all(len(one) == 30 and not one[0] for one in marks.values())
    whole = drafting.complete(**body).json()["usage"]
    assert whole["passes"] + whole["accepted_draft_tokens"] == whole["completion_tokens"] - 2


def test_a_request_may_switch_its_drafts_off(drafting: Running) -> None:
    body = LENGTH | {"prompt": "Off", "temperature": 0}
    expected = drafting.complete(**body).json()["choices"]
    before = drafting.figures()
    answer = drafting.complete(**body, draft="off").json()
    after = drafting.figures()
    assert answer["choices"] == expected
    assert not set(COUNTS) & answer["usage"].keys()
    name = 'skipdec_draft_tokens_total{model="tiny"}'
    assert after[name] == before[name]
    name = 'skipdec_passes_total{model="tiny"}'
    assert after[name] == before[name] + 29
    assert all(
        "drafted" not in one["choices"][0] for one in events(drafting, **body, draft="off")[:-1]
    )
    assert "passes" in drafting.complete(**body, draft=None).json()["usage"]


def test_metrics_add_up_to_the_tokens_written(drafting: Running) -> None:
    def figures() -> dict[str, float]:
        found = drafting.figures().items()
        return {name.replace('{model="tiny"}', ""): value for name, value in found}

    before = figures()
    used = [drafting.complete(**LENGTH | one).json()["usage"] for one in BODIES]
    grown = {name: value - before.get(name, 0) for name, value in figures().items()}
    for name in COUNTS:
        assert grown[f"skipdec_{name}_total"] == sum(one[name] for one in used)
    texts = 8  # the first token of each is not drafted
    written = grown["skipdec_generation_tokens_total"] - texts
    accepted = grown["skipdec_accepted_draft_tokens_total"]
    assert grown["skipdec_passes_total"] + accepted == written
    assert grown["skipdec_accepted_of_a_pass_sum"] == accepted
    assert 0 < grown["skipdec_accepted_of_a_pass_count"] <= grown["skipdec_passes_total"]
    decode = 'skipdec_engine_seconds_total{model="tiny",phase="decode"}'
    assert 0 < grown["skipdec_draft_seconds_total"] < drafting.figures()[decode]
    assert grown["skipdec_draft_steps_total"] == 0, "n-grams run no layers"


def test_models_report_the_drafts_in_use(server: Running, drafting: Running) -> None:
    reported = [one.http.get("/v1/models/tiny").json()["draft"] for one in (server, drafting)]
    assert reported == ["off", DRAFT]


def test_drafts_that_do_not_fit_a_bundle_are_refused_before_loading(bundle: Path) -> None:
    with pytest.raises(UsageError, match="ends:6 runs 6 layers of 6"):
        WorkerSettings(path=bundle, draft="ends:6").inputs()
    with pytest.raises(UsageError, match="does not keep the bits on a GPU"):
        WorkerSettings(path=bundle, draft="own", device="cuda:0").inputs()
