"""Figures for Prometheus, under ``skipdec_``: vLLM's, and what skipping layers saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...scheduling.stats import EngineStats
from ...tokens.outputs import RequestOutput
from .served import ServedModels

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 60.0)
_GAPS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048)
_LAYERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


class Metrics:
    """One server's figures, in a registry of its own."""

    def __init__(self, models: ServedModels) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engines(models))
        self._succeeded = self._counter(
            "request_success", "completions that ended, by why", "finish_reason"
        )
        self._failed = self._counter("request_failed", "requests answered with an error", "reason")
        self._first = self._histogram("time_to_first_token_seconds", "of a completion", _SECONDS)
        self._gap = self._histogram("inter_token_seconds", "steps of a completion", _GAPS)
        self._whole = self._histogram("e2e_request_seconds", "of an HTTP request", _SECONDS)
        self._depth = Histogram(
            "skipdec_realised_depth",
            "layers that a token of a completion ran in the mean",
            ("model", "schedule"),
            registry=self._registry,
            buckets=_LAYERS,
        )

    def observe(
        self, model: str, schedule: str, outputs: Sequence[RequestOutput], seconds: float
    ) -> None:
        """Count a request whose texts have ended; ``schedule``: one of few names."""
        self._whole.labels(model).observe(seconds)
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

    def fail(self, model: str | None, reason: str) -> None:
        """Count a request that was answered with an error."""
        self._failed.labels(model or "", reason).inc()

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, label: str) -> Counter:
        return Counter(f"skipdec_{name}", help, ("model", label), registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"skipdec_{name}", help, ("model",), registry=self._registry, buckets=buckets
        )


class _Engines(Collector):
    """What engines count themselves, read when it is asked for."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known once there are engines."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every figure of every engine."""
        stats = {name: model.engine.stats() for name, model in self._models.items()}
        for name, help, field in (
            ("requests_running", "completions that run", "running"),
            ("requests_waiting", "requests that wait", "waiting"),
            ("mixing_loss", "layers read a step over layers that a row ran", "mixing_loss"),
        ):
            gauge = GaugeMetricFamily(f"skipdec_{name}", help, labels=("model",))
            for model, one in stats.items():
                gauge.add_metric((model,), getattr(one, field) or 0)
            yield gauge
        for name, help, field in (
            ("prompt_tokens", "tokens of prompts that were read", "prompt_tokens"),
            ("generation_tokens", "tokens that were generated", "generated_tokens"),
            ("steps", "decode steps", "steps"),
            ("step_rows", "rows of all decode steps", "step_rows"),
        ):
            counter = CounterMetricFamily(f"skipdec_{name}", help, labels=("model",))
            for model, one in stats.items():
                counter.add_metric((model,), getattr(one, field))
            yield counter
        yield from _by_label(stats)


def _by_label(stats: dict[str, EngineStats]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "skipdec_requests",
        "requests that came, and those that ended; came less ended run or wait",
        labels=("model", "state"),
    )
    memory = GaugeMetricFamily(
        "skipdec_kv_bytes", "of KV caches, reserved and allowed", labels=("model", "kind")
    )
    seconds = CounterMetricFamily(
        "skipdec_engine_seconds", "the engine's time", labels=("model", "phase")
    )
    calls = CounterMetricFamily(
        "skipdec_layer_calls", "decode steps that called a layer", labels=("model", "layer")
    )
    rows = CounterMetricFamily(
        "skipdec_layer_rows", "rows that decode steps ran a layer on", labels=("model", "layer")
    )
    for model, one in stats.items():
        for state in ("submitted", "finished", "aborted", "failed"):
            requests.add_metric((model, state), getattr(one, state))
        memory.add_metric((model, "reserved"), one.reserved_bytes)
        memory.add_metric((model, "limit"), one.limit_bytes)
        seconds.add_metric((model, "prefill"), one.prefill_seconds)
        seconds.add_metric((model, "decode"), one.decode_seconds)
        seconds.add_metric((model, "sampling"), one.sampling_seconds)
        for layer, (called, ran) in enumerate(zip(one.layer_calls, one.layer_rows, strict=True)):
            calls.add_metric((model, str(layer)), called)
            rows.add_metric((model, str(layer)), ran)
    yield from (requests, memory, seconds, calls, rows)
