"""Lines in are parsed one by one, each bad one by itself; lines out are exact."""

from __future__ import annotations

import io
import json

import pytest

from skipdec.runtime.commands import jsonl
from skipdec.runtime.commands.jsonl import (
    BadRecord,
    Record,
    error_line,
    read_records,
    result_line,
    split_lines,
    to_bytes,
)
from skipdec.runtime.tokens.outputs import CompletionOutput, Logprob
from skipdec.runtime.tokens.sampling import SamplingParams

DEFAULTS = SamplingParams(max_tokens=7)


def read(*lines: str | bytes) -> list[Record | BadRecord]:
    encoded = [line.encode() if isinstance(line, str) else line for line in lines]
    return list(read_records(encoded, DEFAULTS))


def completion(**fields: object) -> CompletionOutput:
    return CompletionOutput(
        **{
            "index": 0,
            "text": "é",
            "token_ids": (5, 6),
            "finish_reason": "length",
            "layers_per_token": (6, 4),
            **fields,
        }
    )


def test_line_has_prompt_id_and_its_own_sampling() -> None:
    records = read(
        '{"id": "a", "prompt": "Hi", "temperature": 0}', '{"id": 2, "prompt_token_ids": [3]}'
    )
    assert records == [
        Record(1, "a", "Hi", SamplingParams(max_tokens=7, temperature=0)),
        Record(2, 2, [3], DEFAULTS),
    ]


def test_null_lifts_a_default() -> None:
    (record,) = read('{"id": 1, "prompt": "x", "max_tokens": null}')
    assert isinstance(record, Record)
    assert record.params.max_tokens is None


def test_blank_lines_byte_order_mark_and_windows_line_ends_are_no_problem() -> None:
    records = read(b'\xef\xbb\xbf{"id": 1, "prompt": "a"}\r\n', b"\r\n", '{"id": 2, "prompt": "b"}')
    assert [record.line for record in records] == [1, 3]
    assert all(isinstance(record, Record) for record in records)


@pytest.mark.parametrize(
    ("line", "record_id", "error"),
    [
        ("{", None, "is not JSON"),
        (b'{"id": 1, "prompt": "\xff"}', None, "is not JSON"),
        ("[" * 100_000, None, "is nested deeper than 100 levels"),
        ('"text"', None, "is str; allowed: a JSON object"),
        ('{"prompt": "x"}', None, "id is None"),
        ('{"id": true, "prompt": "x"}', None, "id is True"),
        ('{"id": 1.5, "prompt": "x"}', None, "id is 1.5"),
        ('{"id": "\\ud800", "prompt": "x"}', None, "surrogates not allowed"),
        ('{"id": 1}', 1, "both are missing; give one"),
        ('{"id": 1, "promt": "a"}', 1, "both are missing; did you mean 'prompt'? give one"),
        ('{"id": 1, "prompt": "x", "prompt_token_ids": [1]}', 1, "both are given"),
        ('{"id": 1, "prompt": 3}', 1, "prompt is 3"),
        ('{"id": 1, "prompt_token_ids": "x"}', 1, "prompt_token_ids is 'x'"),
        ('{"id": 1, "prompt": "x", "colour": 2}', 1, "'colour' is unknown"),
        ('{"id": 1, "prompt": "x", "temperature": NaN}', 1, "temperature is nan"),
        ('{"id": 1, "prompt": "x", "self": 2}', 1, "'self' is unknown"),
        ('{"id": 1, "prompt": "\\ud800"}', None, "surrogates not allowed"),
        ('{"id": 1, "prompt": "x", "\\udfff": 2}', None, "surrogates not allowed"),
        (b'{"id": 1, "prompt": "\xed\xa0\x80"}', None, "is not JSON"),
        ('{"id": 1, "prompt": "x", "seed": 1' + "0" * 5000 + "}", None, "is not JSON"),
    ],
)
def test_bad_line_says_what_is_wrong(line: str | bytes, record_id: int | None, error: str) -> None:
    (record,) = read(line)
    assert isinstance(record, BadRecord)
    assert record.record_id == record_id
    assert error in record.error


def test_all_problems_of_a_line_are_named() -> None:
    (record,) = read('{"id": 1, "top_p": 7, "top_k": -5}')
    assert isinstance(record, BadRecord)
    assert record.error.count(";") >= 3
    assert all(name in record.error for name in ("prompt_token_ids", "top_p", "top_k"))


def test_a_line_that_is_too_long_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_MAX_LINE", 30)
    fits = b'{"id": 1, "prompt": "abcdefg"}'
    content = b"\n".join((fits, fits[:-2] + b"h" * 99 + b'"}', fits.replace(b"1", b"2")))
    first, second, third = read_records(split_lines(io.BytesIO(content)), DEFAULTS)
    assert (first.record_id, third.record_id, third.line) == (1, 2, 3)
    assert second == BadRecord(2, None, "is longer than 30 bytes")


def test_of_very_many_problems_some_are_named() -> None:
    (record,) = read(json.dumps({"id": 1, "prompt": "x", **{f"k{n}": n for n in range(5000)}}))
    assert isinstance(record, BadRecord)
    assert record.error.endswith("; and 4980 more problems")


def test_second_line_with_an_id_is_bad_even_if_the_first_one_is() -> None:
    records = read('{"id": 1}', '{"id": 1, "prompt": "x"}', '{"id": "1", "prompt": "x"}')
    assert [type(record) for record in records] == [BadRecord, BadRecord, Record]
    assert records[1] == BadRecord(2, 1, "id 1 was on line 1; ids must differ")


def test_result_line_of_one_completion() -> None:
    line = to_bytes(result_line("a", [completion()]))
    assert line.decode() == (
        '{"id": "a", "text": "é", "token_ids": [5, 6], "finish_reason": "length", '
        '"layers_per_token": [6, 4]}\n'
    )


def test_result_line_of_several_completions_lists_them() -> None:
    line = result_line(1, [completion(), completion(index=1, stop_reason="x")])
    assert [output["index"] for output in line["outputs"]] == [0, 1]
    assert line["outputs"][1]["stop_reason"] == "x"
    assert "text" not in line


def test_log_probabilities_are_there_if_they_were_asked_for() -> None:
    output = completion(cumulative_logprob=-1.5, logprobs=({5: Logprob(-1.5, 2, "e")},))
    line = json.loads(to_bytes(result_line(1, [output])))
    entry = {"token_id": 5, "logprob": -1.5, "rank": 2, "decoded_token": "e"}
    assert (line["cumulative_logprob"], line["logprobs"]) == (-1.5, [[entry]])


def test_error_line_has_the_id_where_there_is_one() -> None:
    assert error_line(BadRecord(3, "a", "no")) == {"id": "a", "line": 3, "error": "no"}
    assert error_line(BadRecord(3, None, "no")) == {"line": 3, "error": "no"}
