"""Lines of prompts are read one by one, and a bad line affects no other."""

from __future__ import annotations

import io
import json

import pytest

from skipdec.runtime.requests import records
from skipdec.runtime.requests.records import BadRecord, Record, read_records, split_lines
from skipdec.runtime.tokens.sampling import SamplingParams

DEFAULTS = SamplingParams(max_tokens=7)


def read(*lines: str | bytes) -> list[Record | BadRecord]:
    encoded = [line.encode() if isinstance(line, str) else line for line in lines]
    return list(read_records(encoded, DEFAULTS))


def test_a_line_has_a_prompt_an_id_and_sampling_parameters() -> None:
    found = read(
        '{"id": "a", "prompt": "Hi", "temperature": 0}', '{"id": 2, "prompt_token_ids": [3]}'
    )
    assert found == [
        Record(1, "a", "Hi", SamplingParams(max_tokens=7, temperature=0)),
        Record(2, 2, [3], DEFAULTS),
    ]


def test_a_line_without_an_id_has_its_line_number() -> None:
    found = read('{"prompt": "a"}', "", '{"id": null, "prompt": "b"}', '{"id": 1, "prompt": "c"}')
    assert [(one.line, one.record_id) for one in found] == [(1, 1), (3, 3), (4, 1)]
    assert found[2] == BadRecord(4, 1, "id 1 was on line 1; ids must differ")


def test_a_line_may_name_its_schedule() -> None:
    (record,) = read('{"prompt": [5, 6], "schedule": "2x"}')
    assert isinstance(record, Record)
    assert (record.prompt, record.schedule) == ([5, 6], "2x")
    assert record.fields == {"prompt": [5, 6], "schedule": "2x"}


def test_a_line_is_checked_together_with_the_defaults() -> None:
    line = b'{"prompt": "a", "min_tokens": 20}'
    for allowed, kind in ((16, BadRecord), (64, Record)):
        (found,) = read_records([line], SamplingParams(max_tokens=allowed))
        assert isinstance(found, kind)


def test_blank_lines_byte_order_mark_and_crlf_are_accepted() -> None:
    found = read(b'\xef\xbb\xbf{"id": 1, "prompt": "a"}\r\n', b"\r\n", '{"id": 2, "prompt": "b"}')
    assert [record.line for record in found] == [1, 3]
    assert all(isinstance(record, Record) for record in found)


@pytest.mark.parametrize(
    ("line", "record_id", "error"),
    [
        ("{", None, "is not JSON"),
        (b'{"id": 1, "prompt": "\xff"}', None, "is not JSON"),
        ("[" * 100_000, None, "is nested deeper than 100 levels"),
        ('"text"', None, "is a JSON text; allowed: an object"),
        ("[1]", None, "is a JSON list; allowed: an object"),
        ("null", None, "is a JSON null; allowed: an object"),
        ('{"id": true, "prompt": "x"}', None, "id is True"),
        ('{"id": 1.5, "prompt": "x"}', None, "id is 1.5"),
        ('{"id": "\\ud800", "prompt": "x"}', None, "has the lone surrogate \\ud800, half of"),
        ('{"id": 1}', 1, "are missing; give one"),
        ('{"id": 1, "prompt": null}', 1, "are missing; give one"),
        ('{"promt": "a"}', 1, "'promt' is unknown; did you mean 'prompt'?"),
        ('{"prompt": "a", "max_token": 3}', 1, "did you mean 'max_tokens'?"),
        ('{"id": 1, "prompt": "x", "prompt_token_ids": [1]}', 1, "are given; give one"),
        ('{"id": 1, "prompt": 3}', 1, "prompt is 3"),
        ('{"id": 1, "prompt": "x", "schedule": 2}', 1, "schedule is 2; allowed: an exit schedule"),
        ('{"id": 1, "prompt": "x", "schedule": "a.JSON"}', 1, "'a.JSON', a file's name; give the"),
        ('{"id": 1, "prompt_token_ids": "x"}', 1, "prompt_token_ids is 'x'"),
        ('{"id": 1, "prompt": "x", "colour": 2}', 1, "'colour' is unknown"),
        ('{"id": 1, "prompt": "x", "temperature": NaN}', 1, "temperature is nan"),
        ('{"id": 1, "prompt": "x", "self": 2}', 1, "'self' is unknown"),
        ('{"id": 1, "prompt": "\\ud800"}', None, "has the lone surrogate \\ud800, half of"),
        ('{"id": 1, "prompt": "x", "\\udfff": 2}', None, "has the lone surrogate \\udfff"),
        ('{"prompt": "x", "seed": 1, "seed": 2}', None, "has the key 'seed' twice in one object"),
        ('{"prompt": "x", "n": false}', 1, "n is False"),
        ('{"prompt": "x", "ignore_eos": 1}', 1, "ignore_eos is 1; allowed: true or false"),
        (b'{"id": 1, "prompt": "\xed\xa0\x80"}', None, "is not JSON"),
        ('{"id": 1, "prompt": "x", "seed": 1' + "0" * 5000 + "}", None, "is not JSON"),
    ],
)
def test_a_bad_line_has_an_error_with_the_reason(
    line: str | bytes, record_id: int | None, error: str
) -> None:
    (record,) = read(line)
    assert isinstance(record, BadRecord)
    assert record.record_id == record_id
    assert error in record.error


def test_null_means_the_default_except_for_max_tokens() -> None:
    names = ("temperature", "stop", "n", "max_tokens", "schedule", "id")
    (record,) = read(json.dumps({"prompt": "x", "logprobs": False} | dict.fromkeys(names)))
    assert isinstance(record, Record)
    assert record.params == DEFAULTS.updated(max_tokens=None)


def test_all_problems_of_a_line_are_named() -> None:
    (record,) = read('{"id": 1, "top_p": 7, "top_k": -5}')
    assert isinstance(record, BadRecord)
    assert record.error.count(";") >= 3
    assert all(name in record.error for name in ("prompt_token_ids", "top_p", "top_k"))


def test_a_line_that_is_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MAX_LINE", 30)
    fits = b'{"id": 1, "prompt": "abcdefg"}'
    content = b"\n".join((fits, fits[:-2] + b"h" * 99 + b'"}', fits.replace(b"1", b"2")))
    first, second, third = read_records(split_lines(io.BytesIO(content)), DEFAULTS)
    assert (first.record_id, third.record_id, third.line) == (1, 2, 3)
    assert second == BadRecord(2, None, "is longer than 30 bytes")


def test_of_many_unknown_fields_the_first_are_named() -> None:
    (record,) = read(json.dumps({"id": 1, "prompt": "x", **{f"k{n}": n for n in range(5000)}}))
    assert isinstance(record, BadRecord)
    assert record.error.endswith("; and 4,990 more unknown fields")


def test_a_repeated_id_is_refused_even_after_a_bad_line() -> None:
    found = read('{"id": 1}', '{"id": 1, "prompt": "x"}', '{"id": "1", "prompt": "x"}')
    assert [type(record) for record in found] == [BadRecord, BadRecord, Record]
    assert found[1] == BadRecord(2, 1, "id 1 was on line 1; ids must differ")


def test_an_error_line_has_the_id_if_known() -> None:
    assert BadRecord(3, "a", "no").to_dict() == {"id": "a", "line": 3, "error": "no"}
    assert BadRecord(3, None, "no").to_dict() == {"line": 3, "error": "no"}
