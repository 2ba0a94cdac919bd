"""POST /v1/completions answers OpenAI's client with the generator's texts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import openai
import pytest
from http_servers import Running, open_tiny, serving

from skipdec.runtime.schedule import realised_depth
from skipdec.runtime.serving.http.server import ServedBundle
from skipdec.runtime.tokens.outputs import RequestOutput
from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.tokenizer import Tokenizer

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
PROMPT = "name[Alimentum]"


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def alone(
    bundle: Path, prompt: str | list[int], schedule: str | None = None, **params: object
) -> RequestOutput:
    with open_tiny(bundle) as generator:
        prompts = [prompt]
        return generator.generate(prompts, SamplingParams(**params), schedule=schedule)[0]


@pytest.mark.parametrize("schedule", [None, "full", "linear:max=4,min=2,warmup=1,horizon=4"])
def test_a_text_and_its_depths_equal_the_generators(
    client: openai.OpenAI, bundle: Path, schedule: str | None
) -> None:
    extra = {} if schedule is None else {"schedule": schedule}
    answer: Any = client.completions.create(model="tiny", prompt=PROMPT, extra_body=extra, **GREEDY)
    expected = alone(bundle, PROMPT, schedule, **GREEDY)
    (choice,), (output,) = answer.choices, expected.outputs
    assert choice.text == output.text
    assert choice.finish_reason == output.finish_reason
    assert choice.schedule == expected.schedule
    assert tuple(choice.layers_per_token) == output.layers_per_token
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(output.token_ids)
    assert answer.usage.realised_depth == realised_depth(output.layers_per_token)


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("ab", 1), (["ab", "c"], 2), ([5, 6], 1), ([[5, 6], [7], [8]], 3)],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_every_form_of_prompt_is_answered_in_order(
    client: openai.OpenAI, bundle: Path, prompt: object, count: int
) -> None:
    params = {"max_tokens": 3, "seed": 4, "n": 2}
    answer = client.completions.create(model="tiny", prompt=prompt, **params)
    prompts = prompt if count > 1 else [prompt]
    expected = [one.text for each in prompts for one in alone(bundle, each, **params).outputs]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(2 * count))


@pytest.mark.parametrize("echo", [False, True])
def test_the_chunks_of_a_stream_join_to_the_whole_answer(client: openai.OpenAI, echo: bool) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": ["ab", "c"],
        "n": 2,
        "seed": 1,
        "max_tokens": 5,
        "echo": echo,
    }
    whole: Any = client.completions.create(**body)
    texts, layers, used = [""] * 4, [list[int]() for _ in range(4)], None
    options: Any = {"include_usage": True}
    chunk: Any
    for chunk in client.completions.create(**body, stream=True, stream_options=options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            layers[choice.index] += choice.layers_per_token
        used = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert layers == [choice.layers_per_token for choice in whole.choices]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens", "realised_depth")
    assert [getattr(used, name) for name in counts] == [
        getattr(whole.usage, name) for name in counts
    ]
    assert texts[0].startswith("ab") >= echo


@pytest.mark.parametrize("stream", [False, True])
def test_echoed_token_ids_are_decoded_once_outside_the_event_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    prompts, decoded = [[5, 6, 7], [8, 9]], list[list[int]]()
    original = Tokenizer.decode

    def decode(tokenizer: Tokenizer, token_ids: list[int], skips: bool = True) -> str:
        if token_ids in prompts:
            decoded.append(token_ids)
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
        return original(tokenizer, token_ids, skips)

    monkeypatch.setattr(Tokenizer, "decode", decode)
    answer = server.complete(prompt=prompts, n=2, seed=1, max_tokens=2, echo=True, stream=stream)
    assert answer.status_code == 200
    assert decoded == prompts


@pytest.mark.parametrize(
    ("schedule", "ranges"),
    [
        ("full", {}),
        ("linear:max=3,min=2,horizon=4", {"2": [[0, 0], [5, 5]], "3": [[0, 0], [4, 5]]}),
        ("linear:max=3,min=2,horizon=4,placement=bottom", {"2": [[0, 1]], "3": [[0, 2]]}),
    ],
)
def test_a_choice_names_the_layers_that_ran(
    bundle: Path, schedule: str, ranges: dict[str, list[list[int]]]
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "ignore_eos": True, "schedule": schedule}
    with serving(ServedBundle("tiny", bundle), schedules=("any",)) as running:
        (choice,) = running.complete(**body).json()["choices"]
        chunks = running.complete(**body, stream=True).text.split("\n\n")
    ranges = ranges | {"6": [[0, 5]]}  # of the first token
    assert choice["layer_ranges"] == ranges
    streamed = dict[str, list[list[int]]]()
    for chunk in chunks[:-2]:
        (part,) = json.loads(chunk.removeprefix("data: "))["choices"]
        assert part["layer_ranges"].keys() == {str(count) for count in part["layers_per_token"]}
        streamed |= part["layer_ranges"]
    assert streamed == ranges


def test_usage_has_the_engines_times(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 8, "n": 2, "ignore_eos": True, "seed": 1}
    start = perf_counter()
    used = server.complete(**body).json()["usage"]
    seconds = perf_counter() - start
    assert 0 < used["time_to_first_token"] < seconds
    assert 0 < used["decode_seconds"] < 2 * seconds
    one = server.complete(prompt="a", max_tokens=1).json()["usage"]
    assert one["decode_seconds"] == 0


def test_logprobs_have_openais_format_whole_and_streamed(
    client: openai.OpenAI, bundle: Path
) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "logprobs": 3, **GREEDY}
    answer = client.completions.create(**body)
    found = answer.choices[0].logprobs
    output = alone(bundle, PROMPT, logprobs=3, **GREEDY).outputs[0]
    assert found is not None
    assert output.logprobs is not None
    assert found.token_logprobs == pytest.approx(
        [
            entry[token].logprob
            for token, entry in zip(output.token_ids, output.logprobs, strict=True)
        ]
    )
    assert found.top_logprobs is not None
    assert all(3 <= len(top) <= 4 for top in found.top_logprobs)
    streamed = [
        value
        for chunk in client.completions.create(**body, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for value in choice.logprobs.token_logprobs or ()
    ]
    assert streamed == found.token_logprobs


def test_text_offsets_locate_tokens_whole_and_streamed(server: Running) -> None:
    body: dict[str, Any] = {"prompt": "a", "n": 2, "seed": 1, "max_tokens": 60, "logprobs": 0}
    body |= {"ignore_eos": True, "stop": "\ufffd" * 4}
    whole = server.complete(**body).json()["choices"]
    lines = server.complete(**body, stream=True).text.split("\n\n")
    streamed: list[list[int]] = [[], []]
    for line in lines[:-2]:
        (part,) = json.loads(line.removeprefix("data: "))["choices"]
        streamed[part["index"]] += part["logprobs"]["text_offset"]
    assert streamed == [choice["logprobs"]["text_offset"] for choice in whole]
    for choice, offsets in zip(whole, streamed, strict=True):
        assert offsets == sorted(offsets)
        for name, start in zip(choice["logprobs"]["tokens"], offsets, strict=True):
            is_cut = start >= len(choice["text"])  # by a stop string
            if not is_cut and not name.startswith(("bytes:", "<", "token_id:")):
                assert choice["text"][start:].lstrip("\ufffd").startswith(name)
    names = [name for choice in whole for name in choice["logprobs"]["tokens"]]
    assert any(name.startswith("bytes:") for name in names)


def test_many_async_clients_each_get_their_own_text(server: Running, bundle: Path) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            calls = [
                client.completions.create(model="tiny", prompt=[5, place], **GREEDY)
                for place in range(12)
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*calls)]

    with open_tiny(bundle) as generator:
        outputs = generator.generate([[5, place] for place in range(12)], SamplingParams(**GREEDY))
    assert asyncio.run(main()) == [output.outputs[0].text for output in outputs]


def test_neutral_values_are_accepted(client: openai.OpenAI) -> None:
    neutral: dict[str, Any] = {"suffix": "", "logit_bias": {}, "stop": [], "n": 1, "best_of": 1}
    neutral |= {"presence_penalty": 0, "frequency_penalty": 0.0, "top_p": 1, "user": ""}
    neutral |= {"echo": False, "stream": False, "extra_body": {"stream_options": {}}}
    plain = client.completions.create(model="tiny", prompt=PROMPT, **GREEDY)
    answer = client.completions.create(model="tiny", prompt=PROMPT, **GREEDY, **neutral)
    assert answer.choices == plain.choices
    neutral["extra_body"] = {"logprobs": False, "stream_options": {"include_usage": None}}
    answer = client.completions.create(model="tiny", prompt=PROMPT, **GREEDY, **neutral)
    assert answer.choices == plain.choices


def test_the_largest_top_k_keeps_all_tokens(server: Running) -> None:
    body: dict[str, Any] = {"prompt": "a", "seed": 3, "max_tokens": 12, "ignore_eos": True}
    answers = [server.complete(**body, top_k=top_k).json() for top_k in (0, 2**63 - 1)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_a_timeout_returns_the_partial_text(server: Running) -> None:
    answer = server.complete(prompt="a", max_tokens=50, ignore_eos=True, timeout=1e-6).json()
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["choices"][0]["stop_reason"] == "deadline"
