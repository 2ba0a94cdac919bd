"""Each request is one line of the log, whatever its path and fields hold."""

from __future__ import annotations

import json
import logging
import re

import pytest
from http_servers import Running, logged

from skipdec.runtime.serving.http.logs import REQUESTS, JsonFormatter, TextFormatter

FORGED = "x\r\n12:00:01 info POST /v1/completions status=200\x1b[2K\u2028\x85 status=200"
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
LINE = re.compile(r"\d\d:\d\d:\d\d \w+ ")


def _record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("a", logging.INFO, "", 0, message, arguments, None)
    record.fields = fields
    return record


@pytest.mark.parametrize(
    "record",
    [
        _record("GET %s", FORGED),
        _record("GET /", schedule=FORGED),
        _record("GET /", model=FORGED, error=FORGED),
        _record(FORGED),
    ],
    ids=["path", "schedule", "other fields", "message"],
)
def test_text_cannot_forge_log_lines_or_control_characters(record: logging.LogRecord) -> None:
    first, *others = TextFormatter().format(record).split("\n")
    assert LINE.match(first)
    assert all(line.startswith("    ") for line in others)
    assert all(line.isprintable() for line in (first, *others))
    (line,) = JsonFormatter().format(record).splitlines()
    assert line.isprintable()
    assert json.loads(line)["level"] == "info"


def test_a_text_with_spaces_is_one_field() -> None:
    line = TextFormatter().format(_record("GET /", schedule="2x status=200", status=400))
    assert line.endswith('GET / schedule="2x status=200" status=400')


def test_a_traceback_is_indented() -> None:
    record = _record("failed")
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *others = TextFormatter().format(record).split("\n")
    assert first.endswith(" INFO failed")
    assert others
    assert all(line.startswith("    ") and line.isprintable() for line in others)


@pytest.mark.parametrize("path", ["/%0a12:00:01%20info%20GET%20/", "/a%20status=200", "/%1b[2K"])
def test_a_requests_path_is_one_word_of_one_line(
    server: Running, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with caplog.at_level(logging.INFO, REQUESTS.name):
        server.http.get(path, headers={"X-Request-Id": "path"})
        server.complete(prompt="a", schedule=FORGED, headers={"X-Request-Id": "schedule"})
        records = logged(caplog, "path", "schedule")
    for record in records:
        assert len(record.getMessage().split(" ")) == 2
        line = TextFormatter().format(record)
        assert line.isprintable()
        assert QUOTED.sub("", line).count(" status=") == 1
