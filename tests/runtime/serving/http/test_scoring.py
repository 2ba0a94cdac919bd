"""``echo`` with ``logprobs`` serves ``local-completions`` of lm-evaluation-harness."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from http_servers import Running, held_steps, in_thread, open_tiny, serving

from skipdec.runtime.schedule.bundle import write_schedule
from skipdec.runtime.serving.http.server import ServedBundle
from skipdec.runtime.tokens.decoding import IncrementalDecoder
from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.tokenizer import Tokenizer

CONTEXTS = [[5, 6, 7], [8, 9], list(range(20, 40))]
CONTINUATIONS = [[10], [11, 12, 13], [14, 15]]


def harness_request(prompts: list[list[int]], **fields: object) -> dict[str, Any]:
    """Return the body that lm-eval 0.4.13 sends for a task of log-likelihoods."""
    form: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    return {"model": "tiny", "prompt": prompts, "echo": True} | form | fields


def read_as_harness(answer: dict[str, Any], context_lengths: list[int]) -> list[tuple[float, bool]]:
    """Return sums and greediness of the continuations, from the lists that the harness reads."""
    found = []
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    for choice, start in zip(choices, context_lengths, strict=True):
        values = choice["logprobs"]["token_logprobs"][start:-1]
        best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][start:-1]]
        found.append((sum(values), values == best))
    return found


@pytest.mark.parametrize("schedule", ["full", None], ids=["full depth", "the bundle's schedule"])
def test_the_harness_reads_the_generators_log_likelihoods(
    server: Running, bundle: Path, schedule: str | None
) -> None:
    with open_tiny(bundle) as generator:
        best = generator.generate(
            CONTEXTS, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), schedule="full"
        )
        greedy = [list(one.outputs[0].token_ids) for one in best]
        for continuations in (CONTINUATIONS, greedy):
            scored = generator.score(CONTEXTS, continuations, schedule="full")
            prompts = [a + b for a, b in zip(CONTEXTS, continuations, strict=True)]
            fields = {} if schedule is None else {"schedule": schedule}
            answer = server.complete(**harness_request(prompts, **fields)).json()
            found = read_as_harness(answer, [len(context) for context in CONTEXTS])
            expected = [one.cumulative_logprob for one in scored]
            assert [total for total, _ in found] == pytest.approx(expected, abs=1e-4)
            assert [is_greedy for _, is_greedy in found] == [continuations is greedy] * 3


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_every_token_has_a_name_a_value_and_an_offset(
    server: Running, bundle: Path, max_tokens: int
) -> None:
    prompt = "h\u00e9llo wor"
    body = harness_request([prompt], max_tokens=max_tokens, logprobs=2)  # type: ignore[list-item]
    answer = server.complete(**body).json()
    (choice,) = answer["choices"]
    logprobs = choice["logprobs"]
    with open_tiny(bundle) as generator:
        (output,) = generator.generate(
            ["h\u00e9llo wor"], SamplingParams(temperature=0, max_tokens=1)
        )
    count = len(output.prompt_token_ids) + max_tokens
    assert {name: len(values) for name, values in logprobs.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), count
    )
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])
    assert choice["text"] == prompt + output.outputs[0].text * max_tokens
    for name, start in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not name.startswith(("bytes:", "<", "token_id:")):
            assert choice["text"][start:].startswith(name)
    assert choice["finish_reason"] == "length"
    assert choice["prompt_layers_per_token"] == [None, *[6] * (count - max_tokens - 1)]
    assert choice["layers_per_token"] == [6] * max_tokens
    assert answer["usage"]["prompt_tokens"] == count - max_tokens
    assert answer["usage"]["completion_tokens"] == max_tokens


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_token_after_a_partial_character_starts_at_its_end(
    server: Running, bundle: Path, max_tokens: int
) -> None:
    with open_tiny(bundle) as generator:
        assert generator.tokenizer is not None
        prompt = generator.tokenizer.encode("h\u00e9llo \u00e9", add_special_tokens=False)[:-1]
        (output,) = generator.generate([prompt], SamplingParams(temperature=0, max_tokens=1))
    body = harness_request([prompt], max_tokens=max_tokens)
    (choice,) = server.complete(**body).json()["choices"]
    whole = "h\u00e9llo \ufffd"
    assert choice["text"] == whole + output.outputs[0].text * max_tokens
    offsets = [0, 1, 1, 2, 3, 4, 5, 6, *[len(whole)] * max_tokens]
    assert choice["logprobs"]["text_offset"] == offsets


def test_a_scored_prompt_is_decoded_by_one_decoder(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoders, original = list[IncrementalDecoder](), Tokenizer.incremental_decoder

    def made(tokenizer: Tokenizer, skips: bool = True) -> IncrementalDecoder:
        decoders.append(original(tokenizer, skips))
        return decoders[-1]

    monkeypatch.setattr(Tokenizer, "incremental_decoder", made)
    assert server.complete(**harness_request([[5, 6, 7]], max_tokens=0)).status_code == 200
    assert len(decoders) == 1


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_allowed_schedule_takes_its_horizon_from_one_token(
    bundle: Path, tmp_path: Path, max_tokens: int
) -> None:
    full = shutil.copytree(bundle, tmp_path / "full")
    write_schedule(full, "full")  # has no horizon to inherit
    body = harness_request([[5, 6]], max_tokens=max_tokens)
    with serving(ServedBundle("tiny", full), schedules=("linear:max=5,min=4",)) as server:
        for horizon, status in ((1, 200), (16, 400)):
            schedule = f"linear:max=5,min=4,warmup=1,horizon={horizon}"
            assert server.complete(**body, schedule=schedule).status_code == status


def test_a_missed_deadline_is_answered_504_and_a_full_queue_429(bundle: Path) -> None:
    waiting = 'skipdec_requests_waiting{model="tiny"}'
    running = 'skipdec_requests_running{model="tiny"}'
    with (
        serving(ServedBundle("tiny", bundle), open_engine=in_thread(max_waiting=2)) as server,
        ThreadPoolExecutor() as pool,
    ):
        late = server.complete(**harness_request([[5, 6]], timeout=1e-9))
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
        with held_steps():
            taken = [pool.submit(server.complete, prompt="a", max_tokens=50, ignore_eos=True)]
            server.wait_until(lambda figures: figures[running] == 1)
            taken.append(pool.submit(server.complete, **harness_request([[5, 6]] * 2)))
            server.wait_until(lambda figures: figures[waiting] == 2)
            refused = server.complete(**harness_request([[5, 6]]))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert [one.result(60).status_code for one in taken] == [200, 200]
        server.wait_until(lambda figures: not figures[waiting])
        assert server.complete(**harness_request([[5, 6]])).status_code == 200


def test_a_disconnect_cancels_all_prompts_of_a_request(server: Running) -> None:
    waiting = 'skipdec_requests_waiting{model="tiny"}'
    running = 'skipdec_requests_running{model="tiny"}'
    disconnected = 'skipdec_request_failed_total{model="tiny",reason="disconnected"}'
    before = server.figures().get(disconnected, 0)
    address = server.url.removeprefix("http://")
    with held_steps():
        text, scored = HTTPConnection(address), HTTPConnection(address)
        long = {"model": "tiny", "prompt": "a", "max_tokens": 50, "ignore_eos": True}
        text.request("POST", "/v1/completions", json.dumps(long))
        server.wait_until(lambda figures: figures[running] == 1)
        scored.request("POST", "/v1/completions", json.dumps(harness_request(CONTEXTS)))
        server.wait_until(lambda figures: figures[waiting] == 3)
        scored.close()
        server.wait_until(lambda figures: figures.get(disconnected, 0) > before)
        text.close()
    server.wait_until(lambda figures: figures[waiting] == figures[running] == 0)
