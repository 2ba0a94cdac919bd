"""Metrics of engines and requests: names, help texts and values, for any registry.

Every name begins with ``skipdec_`` where it is exposed; a counter's then ends in ``_total``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..scheduling.stats import EngineStats

PREFIX = "skipdec_"


@dataclass(frozen=True)
class EngineFigure:
    """A gauge or counter that is read from an engine's stats, by the value of its label."""

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    read: Callable[[EngineStats], Mapping[str, float]]  # without a label: by ""
    label: str | None = None


@dataclass(frozen=True)
class HistogramFigure:
    """A histogram; ``bounds`` are those that a server counts by, () where an engine does."""

    name: str
    help: str
    bounds: tuple[float, ...] = ()
    label: str | None = None


_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 60.0)
_GAPS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048)
_LAYERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def _single(read: Callable[[EngineStats], float]) -> Callable[[EngineStats], Mapping[str, float]]:
    return lambda stats: {"": read(stats)}


def _by_layer(values: tuple[int, ...]) -> Mapping[str, float]:
    return {str(layer): value for layer, value in enumerate(values)}


ENGINE_FIGURES = (
    EngineFigure("requests_running", "completions that run", "gauge", _single(lambda s: s.running)),
    EngineFigure("requests_waiting", "requests that wait", "gauge", _single(lambda s: s.waiting)),
    EngineFigure(
        "mixing_loss",
        "layers read a step over layers that a row ran in the mean; 0 before the first step",
        "gauge",
        _single(lambda s: s.mixing_loss or 0.0),
    ),
    EngineFigure(
        "kv_bytes",
        "of KV caches, reserved by what runs, held by beginnings of prompts, and allowed",
        "gauge",
        lambda s: {
            "reserved": s.reserved_bytes,
            "prefixes": s.prefix_bytes,
            "limit": s.limit_bytes,
        },
        "kind",
    ),
    EngineFigure(
        "requests",
        "requests that came, and those that ended; came less ended run or wait",
        "counter",
        lambda s: {
            "submitted": s.submitted,
            "finished": s.finished,
            "aborted": s.aborted,
            "failed": s.failed,
        },
        "state",
    ),
    EngineFigure(
        "prompt_tokens",
        "tokens of prompts that were read",
        "counter",
        _single(lambda s: s.prompt_tokens),
    ),
    EngineFigure(
        "prefix_tokens",
        "tokens of prompts that an earlier prompt had run",
        "counter",
        _single(lambda s: s.prefix_tokens),
    ),
    EngineFigure(
        "generation_tokens",
        "tokens that were generated",
        "counter",
        _single(lambda s: s.generated_tokens),
    ),
    EngineFigure("steps", "decode steps", "counter", _single(lambda s: s.steps)),
    EngineFigure(
        "engine_seconds",
        "the engine's time",
        "counter",
        lambda s: {
            "prefill": s.prefill_seconds,
            "decode": s.decode_seconds,
            "sampling": s.sampling_seconds,
            "scoring": s.scoring_seconds,
        },
        "phase",
    ),
    EngineFigure(
        "layer_calls",
        "decode steps that called a layer",
        "counter",
        lambda s: _by_layer(s.layer_calls),
        "layer",
    ),
    EngineFigure(
        "layer_rows",
        "rows that decode steps ran a layer on",
        "counter",
        lambda s: _by_layer(s.layer_rows),
        "layer",
    ),
)

# What an engine counts itself: `EngineStats.histograms` by these names.
ENGINE_HISTOGRAMS = (
    HistogramFigure("queue_seconds", "from a request's arrival until its prompt runs"),
    HistogramFigure("prefill_seconds", "of a call for prompts, or for a part of a long one"),
    HistogramFigure("step_seconds", "of a decode step of all rows, sampling left out"),
    HistogramFigure("step_rows", "rows of a decode step"),
    HistogramFigure("step_union_layers", "layers that some row of a decode step ran"),
)

TIME_TO_FIRST_TOKEN = HistogramFigure(
    "time_to_first_token_seconds",
    "from a request's arrival to a completion's first token",
    _SECONDS,
)
INTER_TOKEN = HistogramFigure(
    "inter_token_seconds", "between two tokens of a completion: the step of the second", _GAPS
)
WHOLE_REQUEST = HistogramFigure(
    "e2e_request_seconds", "from a request's arrival to its last token", _SECONDS
)
REALISED_DEPTH = HistogramFigure(
    "realised_depth", "layers that a token of a completion ran in the mean", _LAYERS, "schedule"
)
SUCCESS = ("request_success", "completions that ended, by why", "finish_reason")
FAILURE = ("request_failed", "requests that were answered with an error", "reason")
