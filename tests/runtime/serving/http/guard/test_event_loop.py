"""No content of a request keeps the event loop busy.

These are smoke tests: scripts/attack/fields.py sends far more in CI and verifies the promised 5 ms.
The bodies here once took 40 ms to a minute, so the bound lies between.

The bound applies to the processor time of the loop's thread, the least of a few tries, so that
other programs on the machine do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack.harness import timed_callbacks
from http_servers import Running, serving

from skipdec.runtime.serving.http.protocol import MAX_CONTAINERS, MAX_TEXTS, parse_body
from skipdec.runtime.serving.http.server import ServedBundle

MOST_SECONDS = 0.03
BODIES = {
    "a horizon of a million": json.dumps({"prompt": "a", "schedule": "2x:horizon=1048576"}),
    "digits": json.dumps({"prompt": "a", "schedule": "9" * 490 + "x"}),
    "bad token ids": json.dumps({"prompt": "a", "stop_token_ids": [-1] * 1000}),
    "more token ids": json.dumps({"prompt": "a", "stop_token_ids": [-1] * 200_000}),
    "bad stops": json.dumps({"prompt": "a", "stop": [""] * 10_000}),
    "unknown fields": json.dumps({"prompt": "a"} | {f"unknown{n}": n for n in range(40_000)}),
    "floats": '{"prompt": [' + "1e9," * 200_000 + "1]}",
    "lists": '{"prompt": [' + "[]," * 300_000 + "[]]}",
    "texts": '{"prompt": [' + '"",' * 300_000 + '""]}',
    "a long model": json.dumps({"model": "\n" * 500_000, "prompt": "a"}),
}


@pytest.fixture(scope="module")
def lenient(bundle: Path) -> Iterator[Running]:
    with serving(ServedBundle("tiny", bundle), schedules=("any",)) as running:
        yield running


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_refused_quickly_and_briefly(lenient: Running, name: str) -> None:
    least = float("inf")
    with timed_callbacks() as longest:
        for _ in range(3):
            longest.take()
            answer = lenient.http.post("/v1/completions", content=BODIES[name])
            least = min(least, longest.take())
            assert answer.status_code in (400, 404)
            assert len(answer.content) < 5000
    assert least < MOST_SECONDS


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"prompt": [' + b"[1]," * MAX_CONTAINERS + b"[1]]}", "lists and objects"),
        (b'{"prompt": [' + b'"a",' * MAX_TEXTS + b'"a"]}', "texts"),
    ],
)
def test_a_body_with_too_many_elements_is_refused_with_their_count(body: bytes, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"body \| has [\d,]+ {kind}.*; allowed: [\d,]+"):
        parse_body(body)


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": "[{" * 50_000},
        {"prompt": '\\"[' * 50_000 + "\\"},
        {"prompt": '"' * 100_000},
        {"prompt": [[5, -7, 250]] * 64, "temperature": 0.5, "seed": 2**63},
        {"prompt": list(range(100_000)), "top_p": 1e-3},
    ],
    ids=["brackets", "escapes", "quotes", "ids", "numbers"],
)
def test_brackets_and_quotes_within_texts_are_not_counted(document: dict[str, object]) -> None:
    body = json.dumps(document).encode()
    assert parse_body(body) == parse_body(body + b" " * 5000) == document
