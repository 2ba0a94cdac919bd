"""A request's OpenTelemetry span continues its client's trace and contains its phases."""

from __future__ import annotations

import logging

import pytest
from http_servers import Running
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skipdec.runtime.serving.http import traces
from skipdec.runtime.serving.http.traces import exporting_traces

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exported_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def finished(server: Running, exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """Return the finished spans by name; a further request flushes them."""
    server.http.get("/version")
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_request_and_its_phases_are_spans_of_its_clients_trace(
    server: Running, exported_spans: InMemorySpanExporter, stream: bool
) -> None:
    body = {"prompt": ["secret", "b"], "max_tokens": 3, "ignore_eos": True, "stream": stream}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    server.http.post("/v1/completions", json={"model": "tiny"} | body, headers=headers)
    spans = finished(server, exported_spans)
    (whole,) = spans["POST /v1/completions"]
    assert whole.context is not None
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    assert whole.attributes is not None
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["skipdec.completion_tokens"] == 6
    for index in range(2):
        phases = [spans[name][index] for name in ("queue", "prefill", "decode")]
        assert all(span.parent == whole.context for span in phases)
        times = [(span.start_time or 0, span.end_time or 0) for span in phases]
        assert whole.start_time is not None
        assert whole.start_time <= times[0][0]
        assert [end for _, end in times[:-1]] == [start for start, _ in times[1:]]
        assert all(start <= end for start, end in times)
    assert all("secret" not in span.to_json() for one in spans.values() for span in one)


def test_a_refused_request_is_an_error_without_phases(
    server: Running, exported_spans: InMemorySpanExporter
) -> None:
    server.complete(prompt="a", temperature=-1)
    spans = finished(server, exported_spans)
    (whole,) = spans["POST /v1/completions"]
    assert whole.status.status_code is trace.StatusCode.ERROR
    assert whole.parent is None
    assert "queue" not in spans


def test_traces_that_cannot_be_sent_are_reported_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "is_installed", lambda module: False)
    with caplog.at_level(logging.WARNING):
        with exporting_traces():
            assert not caplog.records
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
        with exporting_traces():
            assert "pip install" in caplog.text
            assert "[otel]" in caplog.text
