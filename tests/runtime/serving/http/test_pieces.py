"""Long answers: made a piece at a time, the same as at once, and none longer than allowed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_servers import Running
from starlette.responses import StreamingResponse

from skipdec.runtime.serving.http.answers import Blocks, Items, encoded, json_answer
from skipdec.runtime.serving.http.completions import _chunks
from skipdec.runtime.tokens.outputs import StreamDelta

LONG: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "temperature": 0}


def document(count: int) -> dict[str, Any]:
    numbers = [list(range(place)) for place in range(count)]
    return {
        "numbers": Blocks(iter(numbers)),
        "items": Items({"é\u2028": Items([block]), "text": "é"} for block in numbers),
        "none": Blocks([]),
        "last": None,
    }


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_pieces_are_the_json_of_the_whole(count: int, ascii_only: bool) -> None:
    numbers = [list(range(place)) for place in range(count)]
    whole = {
        "numbers": [number for block in numbers for number in block],
        "items": [{"é\u2028": [block], "text": "é"} for block in numbers],
        "none": [],
        "last": None,
    }
    joined = b"".join(encoded(document(count), ascii_only=ascii_only)).decode()
    assert joined == json.dumps(whole, ensure_ascii=ascii_only, separators=(",", ":"))


def test_a_long_answer_is_made_between_other_work() -> None:
    async def main() -> tuple[int, int]:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        other = asyncio.create_task(others())
        answer = await json_answer(document(1500))
        assert isinstance(answer, StreamingResponse)
        parts = [part async for part in answer.body_iterator]
        other.cancel()
        return turns, max(map(len, parts))

    turns, longest = asyncio.run(main())
    assert turns > 20
    assert longest < 1 << 18


def test_a_short_answer_has_its_length() -> None:
    answer = asyncio.run(json_answer(document(3)))
    assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"prompt": [[5]] * 64, "n": 4, "max_tokens": 60, "temperature": 1, "logprobs": 20},
            "64 prompts, n 4, max_tokens 60 and logprobs 20 are up to 322,560 log-prob",
        ),
        (
            {"prompt": [[5]] * 24, "n": 8, "max_tokens": 61, "temperature": 1, "logprobs": 30},
            "logprobs is 30",
        ),
        (
            {"prompt": [[5]] * 60, "n": 16, "max_tokens": 61, "temperature": 1, "logprobs": 4}
            | {"stream": True},
            "are up to 292,800 log-probabilities; allowed: 131,072 in one answer; lower",
        ),
    ],
)
def test_more_log_probabilities_than_allowed_are_refused(
    server: Running, fields: dict[str, Any], told: str
) -> None:
    answer = server.complete(**fields)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


def test_prompts_with_too_many_log_probabilities_are_not_scored(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.runtime.serving.http.completions.MAX_REQUEST_LOGPROBS", 21)
    asked: dict[str, Any] = {"echo": True, "logprobs": 20, "max_tokens": 0}
    assert server.complete(prompt=[5], **asked).status_code == 200
    answer = server.complete(prompt=[5, 5], **asked)
    assert answer.status_code == 400
    assert "2 tokens and logprobs 20 are up to 42" in answer.json()["error"]["message"]


def test_long_answers_say_what_short_ones_say(server: Running) -> None:
    asked = LONG | {"logprobs": 20, "echo": False}
    alone = server.complete(prompt="a", **asked)
    many = server.complete(prompt=["a"] * 20, **asked)
    assert "content-length" in alone.headers
    assert many.headers["transfer-encoding"] == "chunked"
    (choice,) = alone.json()["choices"]
    assert [one | {"index": 0} for one in many.json()["choices"]] == [choice] * 20


def test_what_a_slow_reader_left_unread_is_several_events() -> None:
    deltas = [StreamDelta(0, place % 2, (place,), "x", None, 3) for place in range(200)]
    chunks = list(_chunks(deltas))
    assert max(map(len, chunks)) < 50
    assert all(len({one.index for one in chunk}) == 1 for chunk in chunks)
    for index in range(2):
        mine = [one for chunk in chunks for one in chunk if one.index == index]
        assert mine == deltas[index::2]
