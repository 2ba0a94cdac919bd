"""A table of refused requests: path, body, status, and words of the answer."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from http_servers import Running, serving

from skipdec.runtime.serving.http.server import ServedBundle

SHORT: dict[str, Any] = {"prompt": "a", "temperature": 0, "max_tokens": 2}
SCORED: dict[str, Any] = {"prompt": [[5, 6]], "echo": True, "logprobs": 1, "max_tokens": 1}
MANY: dict[str, Any] = {"temperature": 1, "logprobs": 20}
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETIONS, CHATS = "POST /v1/completions", "POST /v1/chat/completions"

REFUSED: list[tuple[str, dict[str, Any] | bytes | None, int, str]] = [
    ("GET /nothing", None, 404, "GET '/nothing' is not served; see /openapi.json"),
    ("POST /v1/completions/", SHORT, 404, "is not served"),  # instead of a redirect to http
    ("GET /v1/completions", None, 405, "GET '/v1/completions' is not served; allowed: POST"),
    ("OPTIONS /v1/models", None, 405, "allowed: GET"),
    ("GET /v1/models/other", None, 404, "model_not_found"),
    (CHATS, HI, 400, "tiny has no chat template; use /v1/completions.*no_chat_template"),
    (COMPLETIONS, SHORT | {"model": "gpt"}, 404, "model_not_found"),
    # Fields.
    (COMPLETIONS, SHORT | {"foo": 1}, 400, "'foo' is unknown"),
    (COMPLETIONS, SHORT | {"": 1}, 400, "^'' is unknown; allowed: max_tokens"),
    (COMPLETIONS, SHORT | {"logit_bias": {"5": 1}}, 400, "logit_bias is .* not supported; leave"),
    (COMPLETIONS, SHORT | {"suffix": "b"}, 400, "suffix is 'b', which is not supported"),
    (COMPLETIONS, SHORT | {"draft": "OFF"}, 400, "draft is 'OFF'; allowed in a request: off"),
    (COMPLETIONS, SHORT | {"draft": ["off"]}, 400, "draft is .'off'.; allowed in a request"),
    (COMPLETIONS, SHORT | {"draft": True}, 400, "draft is True; allowed in a request: off"),
    (COMPLETIONS, SHORT | {"temperature": -1, "n": 99}, 400, "temperature is -1; .*n is 99"),
    (COMPLETIONS, SHORT | {"max_tokens": 0}, 400, "max_tokens is 0; allowed: from 1"),
    (COMPLETIONS, SHORT | {"max_tokens": 10**6}, 400, "shorten the prompt or lower max_tokens"),
    (COMPLETIONS, SHORT | {"max_tokens": True}, 400, "max_tokens is True"),
    (COMPLETIONS, SHORT | {"best_of": 2}, 400, "best_of is 2"),
    (COMPLETIONS, SHORT | {"n": 3, "temperature": 1}, 400, "^n: is 3; the engine runs up to 2"),
    (COMPLETIONS, SHORT | {"logprobs": 21}, 400, "logprobs is 21"),
    (
        COMPLETIONS,
        SHORT | {"stop": ""},
        400,
        "stop is ''; allowed: a non-empty string of up to 256",
    ),
    (COMPLETIONS, SHORT | {"stop": ["x"] * 17}, 400, "stop is .*; allowed: .* a list of up to 16"),
    (COMPLETIONS, SHORT | {"stop": "x" * 257}, 400, "stop is .*; allowed: .* up to 256 characters"),
    (COMPLETIONS, SHORT | {"stop": [f"{one}" for one in range(10**4)]}, 400, "stop"),
    (COMPLETIONS, SHORT | {"stream_options": {"include_usage": True}}, 400, "is for streams"),
    (COMPLETIONS, SHORT | {"stream": True, "stream_options": {"other": True}}, 400, "has other"),
    (COMPLETIONS, SHORT | {"prompt": ["a"] * 65}, 400, "65 prompts"),
    (COMPLETIONS, SHORT | {"prompt": []}, 400, "neither a text nor a list"),
    (COMPLETIONS, SHORT | {"prompt": [[]]}, 400, "no tokens"),
    (COMPLETIONS, SHORT | {"prompt": ["a", [5]]}, 400, "neither a text nor a list"),
    (COMPLETIONS, SHORT | {"prompt": [10**6]}, 400, "token id 1000000"),
    (
        COMPLETIONS,
        SHORT | {"prompt": [5] * 64},
        400,
        "64 tokens and leaves no room .*; shorten the prompt",
    ),
    (COMPLETIONS, SHORT | {"prompt": [5] * 65}, 400, "65 tokens"),
    (COMPLETIONS, SHORT | {"prompt": "\ud800"}, 400, r"has the lone surrogate .*d800, half of a"),
    (COMPLETIONS, SHORT | {"stop": "\udfff"}, 400, r"has the lone surrogate .*dfff"),
    (COMPLETIONS, SHORT | {"schedule": "3x"}, 400, "allowed: full"),
    (COMPLETIONS, SHORT | {"schedule": "/etc/hostname.json"}, 400, "is a file's name"),
    (COMPLETIONS, SHORT | {"schedule": '{"num_layers": 6}'}, 400, "is a document"),
    (
        COMPLETIONS,
        SHORT | {"schedule": "/etc/passwd"},
        400,
        "^schedule: '/etc/passwd' is not allowed; allowed: full[^/]*; see /v1/schedules",
    ),
    (COMPLETIONS, SHORT | {"schedule": "no such"}, 400, "no such"),
    (COMPLETIONS, SHORT | {"timeout": 0}, 400, "timeout is 0"),
    # More log-probabilities than allowed.
    (
        COMPLETIONS,
        MANY | {"prompt": [[5]] * 64, "n": 4, "max_tokens": 60},
        400,
        "64 prompts, n 4, max_tokens 60 and logprobs 20 are up to 322,560 log-prob",
    ),
    (
        COMPLETIONS,
        MANY | {"prompt": [[5]] * 60, "n": 16, "max_tokens": 61, "logprobs": 4, "stream": True},
        400,
        "are up to 292,800 log-probabilities; allowed: 131,072 in one answer; lower",
    ),
    # Prompts that can't be scored.
    (COMPLETIONS, SCORED | {"max_tokens": 2}, 400, "max_tokens is 2; allowed: 0 or 1"),
    (COMPLETIONS, SCORED | {"n": 2, "temperature": 1.0}, 400, "leave out n"),
    (COMPLETIONS, SCORED | {"stream": True}, 400, "leave out n and stream"),
    (COMPLETIONS, SCORED | {"echo": False, "max_tokens": 0}, 400, "max_tokens is 0; allowed"),
    (COMPLETIONS, SCORED | {"prompt": [[5], []]}, 400, "no tokens"),
    (COMPLETIONS, SCORED | {"prompt": [[5] * 65]}, 400, "65 tokens"),
    # Bodies.
    (COMPLETIONS, SHORT | {"stop": [0.5] * 1025}, 400, "stop has 1,025 entries; allowed: 1,024"),
    (COMPLETIONS, SHORT | {"other": [0.5] * 1025}, 400, "other has 1,025 entries"),
    (COMPLETIONS, b"", 400, "JSON"),
    (COMPLETIONS, b"{", 400, "^body: is not JSON"),
    (COMPLETIONS, b"[]", 400, "is not a JSON object"),
    (COMPLETIONS, b"\xff", 400, "JSON"),
    (COMPLETIONS, b"\x1f\x8b\x08", 400, "JSON"),
    (COMPLETIONS, b'{"prompt": "\xff\xfe"}', 400, "JSON"),
    (COMPLETIONS, b"[" * 10_000, 400, "nested|JSON"),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "nested"),
    (COMPLETIONS, b'{"prompt": "a", "n": 1, "n": 1}', 400, "has the key 'n' twice in one object"),
    (COMPLETIONS, b'{"prompt": "a", "stream_options": {"a": 1, "a": 1}}', 400, "key 'a' twice"),
    (COMPLETIONS, b'{"prompt": "' + b"a" * 5000 + b'", "seed": 1, "seed": 2}', 400, "'seed' twice"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}", 400, "digits|JSON"),
    (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
    (COMPLETIONS, SHORT | {"prompt": "a" * (10 << 20)}, 413, "body_too_long"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"), REFUSED, ids=[one[3][:40] for one in REFUSED]
)
def test_a_request_is_refused_in_openais_format_with_the_reason(
    server: Running, path: str, body: dict[str, Any] | bytes | None, status: int, words: str
) -> None:
    content = json.dumps(body) if isinstance(body, dict) else body
    answer = server.http.request(*path.split(), content=content)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert re.search(words, f"{error['message']} {error['code']}", re.DOTALL)
    assert answer.headers["x-request-id"].startswith("req-")
    assert len(answer.content) < 5000


@pytest.mark.parametrize("schedule", ["3x", "no such", "linear:max=99,min=1", "a.json"])
def test_a_refused_schedule_is_named_as_the_field(server: Running, schedule: str) -> None:
    error = server.complete(**SHORT | {"schedule": schedule}).json()["error"]
    assert error["param"] == "schedule"
    assert re.match(r"(exit )?schedule\b", error["message"])


def test_a_refused_schedule_with_slashes_is_named(bundle: Path) -> None:
    with serving(ServedBundle("tiny", bundle), schedules=("any",)) as running:
        for text in ("table:table=9/5", "/etc/passwd"):
            error = running.complete(**SHORT | {"schedule": text}).json()["error"]
            assert error["message"].startswith(f"schedule '{text}': ")


def test_a_compressed_body_is_refused_as_such(server: Running) -> None:
    body, headers = gzip.compress(json.dumps(SHORT).encode()), {"Content-Encoding": "gzip"}
    answer = server.http.post("/v1/completions", content=body, headers=headers)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert "has the Content-Encoding 'gzip'; send plain JSON" in answer.json()["error"]["message"]


def test_a_long_body_without_content_length_is_refused(server: Running) -> None:
    parts = iter([b'{"prompt": "', *[b"a" * 70_000] * 30])
    answer = server.http.post("/v1/completions", content=parts)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_long")
