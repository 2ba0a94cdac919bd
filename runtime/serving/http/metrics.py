"""The server's metrics for Prometheus, of its requests and of its engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from ...schedule import realised_depth
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
from .documents import usage
from .logs import RequestRecord

ReadStats = Callable[[], Mapping[str, EngineStats]]  # the stats of every served model by name


class Metrics:
    """One server's metrics, in a registry of their own."""

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
        """Count a request whose texts have ended; copy its usage to ``record`` and return it.

        It is not a success if its client has disconnected. ``schedule`` is one of few labels.
        """
        model = record.model or ""
        used = usage(outputs, counts_drafts=counts_drafts)
        record.use(used)
        if record.disconnected:
            return used
        record.observed = True
        self._whole.labels(model).observe(record.seconds)
        for one in (completion for output in outputs for completion in output.outputs):
            if one.finish_reason != "error":
                self._succeeded.labels(model, str(one.finish_reason)).inc()
            if one.timings is None or not one.token_ids:
                continue
            self._first.labels(model).observe(one.timings.time_to_first_token)
            gap = self._gap.labels(model)
            for seconds in one.timings.inter_token_seconds:
                gap.observe(seconds)
            if (depth := realised_depth(one.layers_per_token)) is not None:
                self._depth.labels(model, schedule).observe(depth)
        return used

    def end(self, record: RequestRecord) -> None:
        """Count an API request that failed, or whose client disconnected before it ended."""
        reason = "disconnected" if record.disconnected and not record.observed else record.error
        if reason is not None and record.path.startswith("/v1/"):
            self._failed.labels(record.model or "", reason).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
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
    """Yield upper bounds with the number of values up to each, as Prometheus expects them."""
    bounds = [*map(float, distribution.bounds), float("inf")]
    for bound, count in zip(bounds, accumulate(distribution.counts), strict=True):
        yield "+Inf" if bound == float("inf") else str(bound), count
