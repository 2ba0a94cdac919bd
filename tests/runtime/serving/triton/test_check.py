"""The liveness check runs against an HTTP server that answers like Triton."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from skipdec import SkipDecError, UsageError
from skipdec.runtime.serving.triton.check import check_triton_models


class FakeTriton(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, object]]] = {
        "/v2/repository/index": (200, [{"name": "good"}, {"name": "dead"}, {"name": "stuck"}]),
        "/v2/models/good/generate": (200, {"text_output": ""}),
        "/v2/models/dead/generate": (500, {"error": "Stub process is not healthy."}),
        "/v2/models/stuck/generate": (503, {"error": "9 requests wait, as many as max_waiting"}),
    }
    raw = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.raw:
            self.wfile.write(self.raw)
            return
        status, document = self.answers.get(self.path, (400, {"error": "unknown model"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeTriton) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_only_a_model_that_generates_is_alive(url: str) -> None:
    found = {one.model: one.problem for one in check_triton_models(url)}
    assert found["good"] is None
    assert "not healthy" in str(found["dead"])
    assert "max_waiting" in str(found["stuck"]), "a check of a live model is never refused"


def test_a_missing_model_is_reported(url: str) -> None:
    (found,) = check_triton_models(url, ["other"])
    assert "unknown model" in str(found.problem)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\0\0\x12\4\0", r"BadStatusLine\(.*x12"),  # as from Triton's gRPC port
        (OK + b"Content-Length: 9\r\n\r\n{", "IncompleteRead"),
        (OK + b"\r\n{", "Expecting property name"),
        (OK + b'\r\n{"data": []}', r"answered {'data': \[\]}"),
        (OK + b"\r\nnull", "answered None"),
        (OK + b'\r\n[{"name": "good"}, 7]', r"answered \[{'name': 'good'}, 7\]"),
        (OK + b"\r\n" + b"[" * 100_000, "nested deeper"),
        (b"HTTP/1.1 500 Failed\r\nContent-Length: 9\r\n\r\n{", "status 500"),
    ],
)
def test_an_answer_that_is_not_tritons_is_shown(
    url: str, monkeypatch: pytest.MonkeyPatch, raw: bytes, problem: str
) -> None:
    monkeypatch.setattr(FakeTriton, "raw", raw)
    with pytest.raises(SkipDecError, match=problem):
        check_triton_models(url)
    (found,) = check_triton_models(url, ["good"])
    assert re.search(problem, str(found.problem))


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://", "http://[::1", "http://a:b", "http://a:99999"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="localhost:8000"):
        check_triton_models(url)


def test_an_unreachable_server_is_an_error() -> None:
    with pytest.raises(SkipDecError, match="does not list its models"):
        check_triton_models("http://127.0.0.1:1")
