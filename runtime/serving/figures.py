"""Metrics of engines and requests: names, help texts and values, for any registry.

When exposed, every name begins with ``skipdec_``, and a counter's ends in ``_total``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..scheduling.stats import Distribution, EngineStats

PREFIX = "skipdec_"


@dataclass(frozen=True)
class EngineFigure:
    """A gauge or counter of an engine: ``fields`` of its stats by the value of ``label``.

    A field that is a tuple has one number per layer; the label's value is the layer's index.
    """

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    fields: Mapping[str, str]
    label: str | None = None

    def read(self, stats: EngineStats) -> dict[str, float]:
        """Return the figure's numbers by the value of the label; without a label, by ""."""
        if self.label == "layer":
            (field,) = self.fields.values()
            return {str(layer): number for layer, number in enumerate(getattr(stats, field))}
        return {value: getattr(stats, field) or 0.0 for value, field in self.fields.items()}


@dataclass(frozen=True)
class HistogramFigure:
    """A histogram with ``bounds`` if a server counts it, or () if an engine does."""

    name: str
    help: str
    bounds: tuple[float, ...] = ()
    label: str | None = None

    def read(self, stats: EngineStats) -> Distribution | None:
        """Return the engine's distribution; None if the engine does not count it."""
        return stats.histograms.get(self.name)


_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 60.0)
_GAPS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048)
_LAYERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def _gauge(name: str, help: str, field: str) -> EngineFigure:
    return EngineFigure(name, help, "gauge", {"": field})


def _counter(name: str, help: str, field: str) -> EngineFigure:
    return EngineFigure(name, help, "counter", {"": field})


ENGINE_FIGURES = (
    _gauge("requests_running", "completions that run", "running"),
    _gauge("requests_waiting", "requests that wait", "waiting"),
    _gauge(
        "mixing_loss",
        "layers that steps read over the mean depth of their rows; 0 before the first step",
        "mixing_loss",
    ),
    EngineFigure(
        "kv_bytes",
        "of KV caches, reserved by what runs, held by beginnings of prompts, and allowed",
        "gauge",
        {"reserved": "reserved_bytes", "prefixes": "prefix_bytes", "limit": "limit_bytes"},
        "kind",
    ),
    EngineFigure(
        "requests",
        "requests that came, and those that ended; came less ended run or wait",
        "counter",
        {state: state for state in ("submitted", "finished", "aborted", "failed")},
        "state",
    ),
    _counter("prompt_tokens", "tokens of prompts that were read", "prompt_tokens"),
    _counter("prefix_tokens", "tokens of prompts that an earlier prompt had run", "prefix_tokens"),
    _counter("generation_tokens", "tokens that were generated", "generated_tokens"),
    _counter("steps", "decode steps", "steps"),
    _counter("passes", "rows of decode steps: a token each, and right drafts", "step_rows"),
    _counter("draft_steps", "runs of layers that draft a token of each row", "draft_steps"),
    _counter("draft_tokens", "tokens that were drafted and checked", "draft_tokens"),
    _counter("accepted_draft_tokens", "drafted tokens that were right", "accepted_draft_tokens"),
    _counter("draft_seconds", "the part of decode's time that went into drafts", "draft_seconds"),
    _gauge("drafting", "most tokens that a row drafts per pass; 0: none now", "drafting"),
    EngineFigure(
        "engine_seconds",
        "the engine's time",
        "counter",
        {phase: f"{phase}_seconds" for phase in ("prefill", "decode", "sampling", "scoring")},
        "phase",
    ),
    EngineFigure(
        "layer_calls", "decode steps that called a layer", "counter", {"": "layer_calls"}, "layer"
    ),
    EngineFigure(
        "layer_rows",
        "rows that decode steps ran a layer on",
        "counter",
        {"": "layer_rows"},
        "layer",
    ),
)

# Histograms that an engine counts, in `EngineStats.histograms`.
ENGINE_HISTOGRAMS = (
    HistogramFigure("queue_seconds", "from a request's arrival until its prompt runs"),
    HistogramFigure("prefill_seconds", "of a call for prompts, or for a part of a long one"),
    HistogramFigure("step_seconds", "of a decode step of all rows, sampling left out"),
    HistogramFigure("step_rows", "rows of a decode step"),
    HistogramFigure("step_union_layers", "layers that some row of a decode step ran"),
    HistogramFigure("accepted_of_a_pass", "right drafts of a row that drafted, per decode step"),
)

TIME_TO_FIRST_TOKEN = HistogramFigure(
    "time_to_first_token_seconds",
    "from a request's arrival to a completion's first token",
    _SECONDS,
)
INTER_TOKEN = HistogramFigure("inter_token_seconds", "between two tokens of a completion", _GAPS)
WHOLE_REQUEST = HistogramFigure(
    "e2e_request_seconds", "from a request's arrival to its last token", _SECONDS
)
REALISED_DEPTH = HistogramFigure(
    "realised_depth", "mean layers of a completion's tokens but the first", _LAYERS, "schedule"
)
SUCCESS = ("request_success", "completions that ended, by why", "finish_reason")
FAILURE = ("request_failed", "requests that failed, or whose clients went", "reason")
