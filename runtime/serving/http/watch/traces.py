"""OpenTelemetry traces, where its libraries are installed: a span a request, and one a phase."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from .....engines.host.installation import install_command, own_version
from .logs import SERVER
from .record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def trace(scope: Scope, record: RequestRecord) -> None:
    """Tell of a request that has ended; nothing without ``opentelemetry``.

    Its span continues the trace of a ``traceparent`` header. Beneath it stand, for each prompt,
    ``queue`` until its prompt ran, ``prefill`` until its first token, and ``decode``. Attributes
    are what the log says of it, never a prompt or a text.
    """
    if not find_spec("opentelemetry"):
        return
    from opentelemetry import propagate
    from opentelemetry import trace as otel

    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    tracer = otel.get_tracer("skipdec", own_version())
    route = getattr(scope.get("route"), "path", "")  # as it was declared: few names
    span = tracer.start_span(
        f"{record.method} {route}".strip(),
        context=propagate.extract(headers),
        kind=otel.SpanKind.SERVER,
        attributes=_attributes(record),
        start_time=record.start_ns,
    )
    if not span.is_recording():  # nobody exports, or this one was not chosen
        return
    inside = otel.set_span_in_context(span)
    for place, times in enumerate(record.texts):
        for name, start, end in times.phases():
            phase: Span = tracer.start_span(
                name, context=inside, attributes={"skipdec.prompt": place}, start_time=start
            )
            phase.end(end)
    if record.error is not None or record.gone:
        span.set_status(otel.StatusCode.ERROR, record.error or "disconnected")
    span.end()


@contextmanager
def exporting_traces(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Within the block traces are sent by OTLP, where the environment says to whom.

    As OpenTelemetry has it: $OTEL_EXPORTER_OTLP_ENDPOINT and what else its SDK reads.
    """
    if not any(environment.get(name) for name in _ENDPOINTS):
        yield
        return
    if not find_spec("opentelemetry") or not find_spec("opentelemetry.exporter.otlp.proto.http"):
        SERVER.warning("traces are not sent: %s installs the exporter", install_command("otel"))
        yield
        return
    from opentelemetry import trace as otel
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = environment.get("OTEL_SERVICE_NAME", "skipdec")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    otel.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()  # sends what is left


def _attributes(record: RequestRecord) -> dict[str, Any]:
    named = {
        "method": "http.request.method",
        "path": "url.path",
        "status": "http.response.status_code",
    }
    return {named.get(name, f"skipdec.{name}"): value for name, value in record.fields().items()}
