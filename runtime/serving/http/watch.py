"""Watching requests: the record of each, and the log lines, traces and metrics that show it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import accumulate
from time import perf_counter, time_ns
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.types import Scope
from typing_extensions import override

from ....engines.host.installation import install_command, own_version
from ...scheduling.stats import Distribution, EngineStats
from ...tokens.outputs import RequestOutput
from ..figures import (
    ENGINE_FIGURES,
    ENGINE_HISTOGRAMS,
    FAILURE,
    INTER_TOKEN,
    PREFIX,
    REALISED_DEPTH,
    SUCCESS,
    TIME_TO_FIRST_TOKEN,
    WHOLE_REQUEST,
    EngineFigure,
    HistogramFigure,
)
from ..stream import RequestTimes
from .documents import usage

_SERVING = __name__.rpartition(".http.")[0]  # all that serves, workers too
REQUESTS = logging.getLogger(f"{__name__}.requests")
SERVER = logging.getLogger(f"{__name__}.server")

_MOST_PATH = 500  # characters that are kept
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_USED = (  # of an answer's usage
    "prompt_tokens",
    "completion_tokens",
    "realised_depth",
    "passes",
    "draft_tokens",
    "accepted_draft_tokens",
)
_ATTRIBUTES = {  # OpenTelemetry's names
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
}


@dataclass
class RequestRecord:
    """Facts about a request, never its prompt or text. Each part of the server adds its own."""

    request_id: str
    method: str
    path: str
    start: float  # perf_counter seconds
    start_ns: int  # nanoseconds since 1970
    client: str = ""  # its address, or a name of its API key; takes turns with others
    status: int | None = None  # None: nothing was answered
    gone: bool = False  # the client went before the end
    model: str | None = None
    schedule: str | None = None  # as asked for
    prompts: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    realised_depth: float | None = None
    passes: int | None = None  # where the engine drafts, and so the next two
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None  # its code or kind
    texts: list[RequestTimes] = field(default_factory=list)  # one a prompt that was queued

    @classmethod
    def begin(cls, scope: Scope, request_id: str) -> RequestRecord:
        """Make the record of a request that comes now; `of` finds it."""
        path = scope["path"][:_MOST_PATH]
        record = cls(request_id, scope["method"], path, perf_counter(), time_ns())
        record.client = (scope.get("client") or ("",))[0]
        _state(scope)["record"] = record
        return record

    @classmethod
    def of(cls, scope: Scope) -> RequestRecord:
        """Return the record of the request with this scope."""
        record: RequestRecord = _state(scope)["record"]
        return record

    @property
    def seconds(self) -> float:
        """Seconds since the request came."""
        return perf_counter() - self.start

    def use(self, usage: dict[str, Any]) -> None:
        """Take over what an answer says it used."""
        for name in _USED:
            setattr(self, name, usage.get(name))

    def fields(self) -> dict[str, Any]:
        """Return the known fields for a log line."""
        known = vars(self) | {"seconds": round(self.seconds, 4)}
        for name in ("start", "start_ns", "client", "texts"):
            del known[name]
        if self.realised_depth is not None:
            known["realised_depth"] = round(self.realised_depth, 3)
        return {name: value for name, value in known.items() if value not in (None, (), False)}

    def log(self) -> None:
        """Write the line of a request that has ended."""
        path = printable(self.path).replace(" ", "%20")
        REQUESTS.info("%s %s", self.method, path, extra={"fields": self.fields()})


def _state(scope: Scope) -> MutableMapping[str, Any]:
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    return state


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the record's ``fields``."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """``12:00:01 info POST /v1/completions status=200 seconds=0.31``.

    Further lines, of a traceback say, are indented: nothing that a client sends begins a line or
    moves a terminal's cursor.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    @override
    def format(self, record: logging.LogRecord) -> str:
        first, *others = (printable(line) for line in super().format(record).split("\n"))
        return "\n".join([first, *(f"    {line}" for line in others)])

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {}).items()
        shown = [
            f"{name}={_field(value)}" for name, value in fields if name not in ("method", "path")
        ]
        return " ".join([super().formatMessage(record), *shown])


def printable(text: str) -> str:
    """Return ``text`` with escapes for control characters, line ends and the like.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _field(value: object) -> str:
    """A text with spaces, quotes or line ends in quotes, so that it can't look like two fields."""
    if not isinstance(value, str) or (value.isprintable() and not set(value) & set(' "')):
        return str(value)
    return json.dumps(value)


def log_to_stderr(form: Literal["text", "json"]) -> None:
    """Give the process' root logger one handler that writes lines of this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger(_SERVING).setLevel(logging.INFO)


def trace(scope: Scope, record: RequestRecord) -> None:
    """Make the OpenTelemetry span of a request that has ended; nothing without ``opentelemetry``.

    The span continues the trace of a ``traceparent`` header. It has children for each prompt:
    ``queue`` until its prompt ran, ``prefill`` until its first token, and ``decode``. Attributes
    are those of the log line, never a prompt or a text.
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
        attributes={
            _ATTRIBUTES.get(name, f"skipdec.{name}"): value
            for name, value in record.fields().items()
        },
        start_time=record.start_ns,
    )
    if not span.is_recording():  # nobody exports, or this one was not chosen
        return
    inside = otel.set_span_in_context(span)
    for place, times in enumerate(record.texts):
        for name, start, end in times.phases():
            attributes = {"skipdec.prompt": place}
            tracer.start_span(name, inside, attributes=attributes, start_time=start).end(end)
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


ReadStats = Callable[[], Mapping[str, EngineStats]]  # of every served model, by its name


class Metrics:
    """One server's figures, in a registry of its own."""

    def __init__(self, stats: ReadStats) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engines(stats))
        self._succeeded = self._counter(*SUCCESS)
        self._failed = self._counter(*FAILURE)
        self._first = self._histogram(TIME_TO_FIRST_TOKEN)
        self._gap = self._histogram(INTER_TOKEN)
        self._whole = self._histogram(WHOLE_REQUEST)
        self._depth = self._histogram(REALISED_DEPTH)

    def observe(
        self,
        record: RequestRecord,
        schedule: str,
        outputs: Sequence[RequestOutput],
        *,
        counts_drafts: bool = False,
    ) -> dict[str, Any]:
        """Count a request whose texts have ended, and return its usage, which ``record`` keeps.

        ``schedule``: one of few names.
        """
        model = record.model or ""
        used = usage(outputs, counts_drafts=counts_drafts)
        record.use(used)
        self._whole.labels(model).observe(record.seconds)
        for one in (completion for output in outputs for completion in output.outputs):
            if one.finish_reason != "error":
                self._succeeded.labels(model, str(one.finish_reason)).inc()
            if one.timings is None or not one.token_ids:
                continue
            self._first.labels(model).observe(one.timings.time_to_first_token)
            gap = self._gap.labels(model)
            for step in one.timings.step_seconds:
                gap.observe(step)
            depth = sum(one.layers_per_token) / len(one.layers_per_token)
            self._depth.labels(model, schedule).observe(depth)
        return used

    def fail(self, model: str | None, reason: str) -> None:
        """Count a request that was answered with an error."""
        self._failed.labels(model or "", reason).inc()

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, label: str) -> Counter:
        return Counter(f"{PREFIX}{name}", help, ("model", label), registry=self._registry)

    def _histogram(self, figure: HistogramFigure) -> Histogram:
        return Histogram(
            f"{PREFIX}{figure.name}",
            figure.help,
            ("model",) if figure.label is None else ("model", figure.label),
            registry=self._registry,
            buckets=figure.bounds,
        )


class _Engines(Collector):
    """The engines' own counters, read at each scrape."""

    def __init__(self, stats: ReadStats) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Return nothing, since metric names depend on the engines."""
        return ()

    @override
    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for figure in ENGINE_FIGURES:
            yield _family(figure, stats)
        for histogram in ENGINE_HISTOGRAMS:
            yield _histogram_family(histogram, stats)


def _family(figure: EngineFigure, stats: Mapping[str, EngineStats]) -> Metric:
    kinds: dict[str, type[GaugeMetricFamily | CounterMetricFamily]] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
    }
    labels = ("model",) if figure.label is None else ("model", figure.label)
    family = kinds[figure.kind](f"{PREFIX}{figure.name}", figure.help, labels=labels)
    for model, one in stats.items():
        for value, number in figure.read(one).items():
            family.add_metric((model,) if figure.label is None else (model, value), number)
    return family


def _histogram_family(figure: HistogramFigure, stats: Mapping[str, EngineStats]) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}{figure.name}", figure.help, labels=("model",))
    for model, one in stats.items():
        if (distribution := figure.read(one)) is not None:
            family.add_metric((model,), list(_buckets(distribution)), distribution.total)
    return family


def _buckets(distribution: Distribution) -> Iterator[tuple[str, float]]:
    """Upper bounds and how many values are at most as large, as Prometheus has them."""
    bounds = [*map(float, distribution.bounds), float("inf")]
    for bound, count in zip(bounds, accumulate(distribution.counts), strict=True):
        yield "+Inf" if bound == float("inf") else str(bound), count
