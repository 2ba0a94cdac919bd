"""Smoke tests: nothing that a request says keeps the event loop busy.

The promise of 5 ms is held by scripts/attack/fields.py, which sends far more and runs in CI; these
bodies once took 40 ms to a minute, and the bound here lies between.

Processor time of the loop's own thread counts, not the clock, and the least of a few tries: other
programs on the machine do not matter.
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
def test_a_body_costs_the_event_loop_little_and_gets_a_short_refusal(
    lenient: Running, name: str
) -> None:
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
    ("body", "told"),
    [
        (b'{"prompt": [' + b"[1]," * MAX_CONTAINERS + b"[1]]}", "lists and objects"),
        (b'{"prompt": [' + b'"a",' * MAX_TEXTS + b'"a"]}', "texts"),
    ],
)
def test_a_body_of_too_many_parts_is_refused_by_their_number(body: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=rf"body \| has [\d,]+ {told}.*; allowed: [\d,]+"):
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
def test_what_texts_hold_is_not_counted(document: dict[str, object]) -> None:
    body = json.dumps(document).encode()
    assert parse_body(body) == parse_body(body + b" " * 5000) == document
