"""A model's metrics, beside Triton's own at /metrics: `EngineStats`, and how long clients wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

import triton_python_backend_utils as pb_utils

from ...scheduling.stats import EngineStats

_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]

_GAUGES = {  # name → what it is; values: `_gauges`
    "requests_running": "completions that run",
    "requests_waiting": "requests that wait",
    "kv_reserved_bytes": "KV memory that running requests reserve",
    "kv_limit_bytes": "KV memory that may be reserved",
}
_COUNTERS = {  # name → what it is; values: `_counters`
    "prompt_tokens_total": "prompt tokens run",
    "generation_tokens_total": "tokens generated",
    "steps_total": "decode steps",
    "step_rows_total": "rows of all decode steps",
    "layer_calls_total": "calls of decoder layers in decode steps",
    "layer_rows_total": "rows of all these calls",
    "request_success_total": "requests that ended, by the reason",
    "request_failed_total": "requests that were answered with an error",
    "engine_seconds_total": "time of the engine's thread, by what it did",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "from a request's arrival to its first token",
    "inter_token_seconds": "between two tokens of a request",
    "e2e_request_seconds": "from a request's arrival to its last token",
}


class ModelMetrics:
    """The metrics of one model, called ``skipdec_…``, with its name and version as labels.

    For one thread. Each new value is a message to the server, whose answer is waited for: what has
    not changed isn't sent, and nothing after `close`.
    """

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._families = {
            **_families(_GAUGES, pb_utils.MetricFamily.GAUGE),
            **_families(_COUNTERS, pb_utils.MetricFamily.COUNTER),
            **_families(_HISTOGRAMS, pb_utils.MetricFamily.HISTOGRAM),
        }
        self._metrics: dict[tuple[str, str], Any] = {}
        self._is_closed = False
        self._sent: defaultdict[tuple[str, str], float] = defaultdict(float)
        for name in _GAUGES:
            self._metric(name)
        for name in _HISTOGRAMS:
            self._metric(name, buckets=_SECONDS)

    def close(self) -> None:
        """Send nothing any more. From any thread."""
        self._is_closed = True

    def update(self, stats: EngineStats) -> None:
        """Send what has changed."""
        if self._is_closed:
            return
        for name, value in _gauges(stats).items():
            if self._sent[name, ""] != value:
                self._metric(name).set(value)
                self._sent[name, ""] = value
        for (name, label), value in _counters(stats).items():
            grown = value - self._sent[name, label]
            if grown > 0:
                self._metric(name, label).increment(grown)
                self._sent[name, label] = value

    def count_failure(self, reason: str) -> None:
        """A request was answered with an error; ``reason`` is its class."""
        if not self._is_closed:
            self._metric("request_failed_total", f"reason={reason}").increment(1)

    def clock(self) -> RequestClock:
        """The times of a request that arrives now."""
        return RequestClock(self)

    def observe(self, name: str, seconds: float) -> None:
        """Add to the histogram ``name``."""
        self._metric(name).observe(seconds)

    def count_success(self, reasons: Iterable[str]) -> None:
        """A request has ended; the reasons, each once, why its completions did."""
        for reason in reasons:
            self._metric("request_success_total", f"finish_reason={reason}").increment(1)

    def _metric(self, name: str, label: str = "", **options: Any) -> Any:  # noqa: ANN401
        if (name, label) not in self._metrics:
            key, _, value = label.partition("=")
            labels = self._labels | ({key: value} if label else {})
            self._metrics[name, label] = self._families[name].Metric(labels=labels, **options)
        return self._metrics[name, label]


class RequestClock:
    """When a request's tokens came."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._start = perf_counter()
        self._last: float | None = None

    def tick(self) -> bool:
        """A step's tokens are there; whether they are the first."""
        now = perf_counter()
        is_first = self._last is None
        if self._last is None:
            self._metrics.observe("time_to_first_token_seconds", now - self._start)
        else:
            self._metrics.observe("inter_token_seconds", now - self._last)
        self._last = now
        return is_first

    def end(self, reasons: Iterable[str]) -> None:
        """They were the last; ``reasons``: see `ModelMetrics.count_success`."""
        self._metrics.observe("e2e_request_seconds", perf_counter() - self._start)
        self._metrics.count_success(reasons)


def _families(described: Mapping[str, str], kind: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        name: pb_utils.MetricFamily(name=f"skipdec_{name}", description=text, kind=kind)
        for name, text in described.items()
    }


def _gauges(stats: EngineStats) -> dict[str, float]:
    return {
        "requests_running": stats.running,
        "requests_waiting": stats.waiting,
        "kv_reserved_bytes": stats.reserved_bytes,
        "kv_limit_bytes": stats.limit_bytes,
    }


def _counters(stats: EngineStats) -> dict[tuple[str, str], float]:
    """By name and label; of layers, all together: their quotient is the rows of a call."""
    return {
        ("prompt_tokens_total", ""): stats.prompt_tokens,
        ("generation_tokens_total", ""): stats.generated_tokens,
        ("steps_total", ""): stats.steps,
        ("step_rows_total", ""): stats.step_rows,
        ("layer_calls_total", ""): sum(stats.layer_calls),
        ("layer_rows_total", ""): sum(stats.layer_rows),
        ("engine_seconds_total", "phase=prefill"): stats.prefill_seconds,
        ("engine_seconds_total", "phase=decode"): stats.decode_seconds,
        ("engine_seconds_total", "phase=sampling"): stats.sampling_seconds,
    }
