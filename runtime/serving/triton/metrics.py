"""A model's metrics among Triton's own at /metrics: those of `figures`, with the same names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import triton_python_backend_utils as pb_utils

from ...scheduling.stats import EngineStats
from ...tokens.outputs import StreamDelta
from ..figures import (
    ENGINE_FIGURES,
    ENGINE_HISTOGRAMS,
    FAILURE,
    INTER_TOKEN,
    PREFIX,
    SUCCESS,
    TIME_TO_FIRST_TOKEN,
    WHOLE_REQUEST,
    EngineFigure,
)

_HISTOGRAMS = (TIME_TO_FIRST_TOKEN, INTER_TOKEN, WHOLE_REQUEST)


class ModelMetrics:
    """The metrics of one model, called ``skipdec_…``, with its name and version as labels.

    For one thread. Each new value is a message to the server, and the thread waits for its answer.
    So only changed values are sent, layers as their sum, and an engine's histograms as the
    ``_sum`` and ``_count`` that they would have; nothing is sent after `close`.
    """

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._families = dict(_families())
        self._metrics: dict[tuple[str, str], Any] = {}
        self._is_closed = False
        self._sent: defaultdict[tuple[str, str], float] = defaultdict(float)
        for figure in ENGINE_FIGURES:
            if figure.kind == "gauge" and figure.label is None:
                self._metric(figure.name)
        for histogram in _HISTOGRAMS:
            self._metric(histogram.name, buckets=list(histogram.bounds))

    def close(self) -> None:
        """Send nothing from now on. From any thread."""
        self._is_closed = True

    def update(self, stats: EngineStats) -> None:
        """Send the values that have changed."""
        for kind, name, label, value in _values(stats):
            sent = self._sent[name, label]
            if kind == "gauge" and value != sent:
                self._send("set", value, name, label)
            elif kind == "counter" and value > sent:
                self._send("increment", value - sent, name, label)
            else:
                continue
            self._sent[name, label] = value

    def count_failure(self, reason: str) -> None:
        """Count a request that was answered with an error; ``reason`` is its class."""
        self._send("increment", 1, f"{FAILURE[0]}_total", f"{FAILURE[2]}={reason}")

    def observe(self, name: str, seconds: float) -> None:
        """Add a value to the histogram ``name``."""
        self._send("observe", seconds, name)

    def count_success(self, reasons: Iterable[str]) -> None:
        """Count a request that has ended; ``reasons`` are those of its completions."""
        for reason in reasons:
            self._send("increment", 1, f"{SUCCESS[0]}_total", f"{SUCCESS[2]}={reason}")

    def _send(self, call: str, value: float, name: str, label: str = "") -> None:
        if not self._is_closed:
            getattr(self._metric(name, label), call)(value)

    def _metric(self, name: str, label: str = "", **options: Any) -> Any:  # noqa: ANN401
        if (name, label) not in self._metrics:
            key, _, value = label.partition("=")
            labels = self._labels | ({key: value} if label else {})
            self._metrics[name, label] = self._families[name].Metric(labels=labels, **options)
        return self._metrics[name, label]


class RequestClock:
    """Measures the times of a request's tokens for metrics."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._start = perf_counter()
        self._last: dict[int, float] = {}  # the time of each completion's last token

    def tick(self, deltas: Sequence[StreamDelta]) -> bool:
        """Record tokens that arrive now; return True if they are the first."""
        now, is_first = perf_counter(), not self._last
        for index in (delta.index for delta in deltas for _ in delta.token_ids):
            if index in self._last:
                self._metrics.observe(INTER_TOKEN.name, now - self._last[index])
            else:
                self._metrics.observe(TIME_TO_FIRST_TOKEN.name, now - self._start)
            self._last[index] = now
        return is_first

    def end(self, reasons: Iterable[str]) -> None:
        """Record the end of the request; ``reasons``: see `ModelMetrics.count_success`."""
        self._metrics.observe(WHOLE_REQUEST.name, perf_counter() - self._start)
        self._metrics.count_success(reasons)


def _families() -> Iterator[tuple[str, Any]]:
    kinds = pb_utils.MetricFamily
    for figure in ENGINE_FIGURES:
        yield _family(_name(figure), figure.help, getattr(kinds, figure.kind.upper()))
    for histogram in ENGINE_HISTOGRAMS:
        yield _family(f"{histogram.name}_sum", f"sum: {histogram.help}", kinds.COUNTER)
        yield _family(f"{histogram.name}_count", f"count: {histogram.help}", kinds.COUNTER)
    for name, help, _ in (SUCCESS, FAILURE):
        yield _family(f"{name}_total", help, kinds.COUNTER)
    for histogram in _HISTOGRAMS:
        yield _family(histogram.name, histogram.help, kinds.HISTOGRAM)


def _family(name: str, help: str, kind: Any) -> tuple[str, Any]:  # noqa: ANN401
    return name, pb_utils.MetricFamily(name=f"{PREFIX}{name}", description=help, kind=kind)


def _name(figure: EngineFigure) -> str:
    return figure.name if figure.kind == "gauge" else f"{figure.name}_total"


def _values(stats: EngineStats) -> Iterator[tuple[str, str, str, float]]:
    """Yield kind, name, label and value of each figure; figures of layers are summed."""
    for figure in ENGINE_FIGURES:
        values = figure.read(stats)
        if figure.label == "layer":
            values = {"": sum(values.values())}
        for value, number in values.items():
            yield figure.kind, _name(figure), f"{figure.label}={value}" if value else "", number
    for histogram in ENGINE_HISTOGRAMS:
        if (distribution := histogram.read(stats)) is not None:
            yield "counter", f"{histogram.name}_sum", "", distribution.total
            yield "counter", f"{histogram.name}_count", "", sum(distribution.counts)
