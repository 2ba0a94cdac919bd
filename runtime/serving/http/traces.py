"""OpenTelemetry spans of requests, and their export."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from ....engines.host.installation import install_command, is_installed, own_version
from .logs import SERVER, RequestRecord

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_ATTRIBUTES = {  # OpenTelemetry's names
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
}


def trace(scope: Scope, record: RequestRecord) -> None:
    """Create the OpenTelemetry span of a request that has ended, if ``opentelemetry`` is installed.

    The span continues the trace of a ``traceparent`` header. For each prompt it has the children
    ``queue`` until the prompt runs, ``prefill`` until the first token, and ``decode``. Its
    attributes are those of the log line, never a prompt or a text.
    """
    if not is_installed("opentelemetry"):
        return
    from opentelemetry import propagate
    from opentelemetry import trace as otel

    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    tracer = otel.get_tracer("skipdec", own_version())
    route = getattr(scope.get("route"), "path", "")  # as declared, so that there are few names
    span = tracer.start_span(
        f"{record.method} {route}".strip(),
        context=propagate.extract(headers),
        kind=otel.SpanKind.SERVER,
        attributes={
            _ATTRIBUTES.get(name, f"skipdec.{name}"): value
            for name, value in record.fields().items()
        },
        start_time=record.start_ns,
    )
    if not span.is_recording():  # spans are not exported, or this one was not sampled
        return
    inside = otel.set_span_in_context(span)
    for index, times in enumerate(record.texts):
        for name, start, end in times.phases():
            attributes = {"skipdec.prompt": index}
            tracer.start_span(name, inside, attributes=attributes, start_time=start).end(end)
    if record.error is not None or record.disconnected:
        span.set_status(otel.StatusCode.ERROR, record.error or "disconnected")
    span.end()


@contextmanager
def exporting_traces() -> Iterator[None]:
    """Export traces with OTLP within the block, if the environment names a receiver.

    The variables are OpenTelemetry's: $OTEL_EXPORTER_OTLP_ENDPOINT and others that its SDK reads.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        yield
        return
    if not is_installed("opentelemetry.exporter.otlp.proto.http"):
        SERVER.warning("traces are not sent: %s installs the exporter", install_command("otel"))
        yield
        return
    from opentelemetry import trace as otel
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "skipdec")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    otel.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()  # sends the remaining spans
