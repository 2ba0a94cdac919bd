"""Figures of a load: time to first token, gaps between tokens, throughput, goodput, errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.load.arrivals import Result


@dataclass(frozen=True)
class Objectives:
    """Limits in milliseconds that a good request meets; None: no limit."""

    ttft: float | None = None  # time to first token
    gap: float | None = None  # mean gap between tokens
    latency: float | None = None

    def are_met(self, result: Result) -> bool:
        """Return True if the complete ``result`` meets the limits."""
        gaps = result.gaps
        seen = (
            (result.time_to_first_token, self.ttft),
            (sum(gaps) / len(gaps) if gaps else 0.0, self.gap),
            (result.latency, self.latency),
        )
        return all(limit is None or 1000 * value <= limit for value, limit in seen)


@dataclass(frozen=True)
class Figures:
    """Summary of all results of a load; times in milliseconds, percentiles by number."""

    sent: int
    whole: int
    left: int  # left early by their clients
    errors: Mapping[str, int]  # by kind
    seconds: float  # from the first request to the last end
    ttft: Mapping[str, float]  # time to first token
    gap: Mapping[str, float]
    latency: Mapping[str, float]
    tokens_per_second: float  # in the middle of the load: see `Figures.of`
    requests_per_second: float  # requests answered completely, over all seconds
    goodput: float  # requests per second that met the objectives

    @classmethod
    def of(cls, results: Sequence[Result], objectives: Objectives) -> Figures:
        """Summarise results.

        Throughput counts tokens from when a fifth of all requests has ended until the last one is
        sent. This excludes the times when the server is empty or runs out of requests.
        """
        whole = [result for result in results if result.is_whole]
        start = min(result.due for result in results)
        seconds = max(result.end for result in results) - start
        return cls(
            sent=len(results),
            whole=len(whole),
            left=sum(result.left for result in results),
            errors=Counter(result.error for result in results if result.error is not None),
            seconds=seconds,
            ttft=_percentiles([result.time_to_first_token for result in whole]),
            gap=_percentiles([gap for result in whole for gap in result.gaps]),
            latency=_percentiles([result.latency for result in whole]),
            tokens_per_second=_throughput(results),
            requests_per_second=len(whole) / seconds,
            goodput=sum(map(objectives.are_met, whole)) / seconds,
        )

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return asdict(self)

    def table(self) -> str:
        """Return the figures as Markdown."""
        rows = [
            f"| {name} | {times['p50']:.1f} | {times['p95']:.1f} | {times['p99']:.1f} |"
            for name, times in (
                ("time to first token", self.ttft),
                ("gap between tokens", self.gap),
                ("whole request", self.latency),
            )
        ]
        errors = ", ".join(f"{count} × {kind}" for kind, count in self.errors.items()) or "none"
        return "\n".join(
            [
                "| ms | p50 | p95 | p99 |\n|---|---|---|---|",
                *rows,
                "",
                f"{self.tokens_per_second:.1f} tokens/s, {self.requests_per_second:.2f} requests/s,"
                f" goodput {self.goodput:.2f} requests/s; {self.sent} sent in {self.seconds:.1f} s,"
                f" {self.whole} whole, {self.left} left by their clients; errors: {errors}",
            ]
        )


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that the fraction ``part`` does not exceed; NaN if empty.

    >>> percentile([1, 2, 3, 4], 0.5)
    2
    """
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    return {
        name: 1000 * percentile(seconds, part)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


def _throughput(results: Sequence[Result]) -> float:
    ends = sorted(result.end for result in results)
    start, stop = ends[len(ends) // 5], max(result.due for result in results)
    if stop <= start:  # too short for a middle
        start, stop = min(result.due for result in results), ends[-1]
    tokens = sum(
        count for result in results for time, count in result.events if start < time <= stop
    )
    return tokens / (stop - start)
