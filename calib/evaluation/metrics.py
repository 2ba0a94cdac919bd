"""Metrics of generated texts, each a function of sums over the examples.

A metric turns every example into a row of statistics; its value is a function of their column
sums. A bootstrap resample therefore needs only new sums, never new n-grams, even for BLEU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from ...engines.registry import Registry
from .config import MetricOptions

Statistics = npt.NDArray[np.float64]

METRICS = Registry(
    "metric",
    {
        "bleu": "calib.evaluation.references:Bleu",
        "rouge_l": "calib.evaluation.references:RougeL",
        "bert_f": "calib.evaluation.references:BertF",
        "perplexity": "calib.evaluation.metrics:Perplexity",
        "realised_depth": "calib.evaluation.metrics:RealisedDepth",
        "output_tokens": "calib.evaluation.metrics:OutputTokens",
        "length_ratio": "calib.evaluation.metrics:LengthRatio",
        "cut_share": "calib.evaluation.metrics:CutShare",
        "repetition": "calib.evaluation.metrics:Repetition",
    },
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A text that one bundle generated for one prompt at one schedule, with its scores."""

    text: str
    token_ids: tuple[int, ...]  # without the end-of-text token
    is_cut: bool  # ended by max_tokens, not by the model
    layers_per_token: tuple[int, ...]  # all output tokens, including the end-of-text token
    references: tuple[str, ...]
    reference_tokens: float  # mean length of the references in the bundle's tokens
    logprobs: tuple[float, ...]  # the first reference's tokens and end of text, at scheduled depth


class Metric(ABC):
    """One figure; ``heading`` names it in tables.

    ``better`` is the better direction of a quality measure; None for a mere description.
    ``needs_text`` is True if it measures the generated text, False if only the scored reference.
    """

    heading: ClassVar[str]
    digits: ClassVar[int] = 2
    better: ClassVar[Literal["higher", "lower"] | None] = None
    needs_text: ClassVar[bool] = True

    @classmethod
    def create(cls, options: MetricOptions) -> Self | None:
        """Return the metric as configured by ``options``; None if they do not select it."""
        return cls()

    @abstractmethod
    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """Return one row per example, float64 [n, k]."""

    @abstractmethod
    def value(self, sums: Statistics) -> float:
        """Return the figure from the column sums, float64 [k]; nan if it is undefined."""


class Ratio(Metric):
    """A ratio of sums: ``scale`` × column 0 ÷ column 1."""

    scale: ClassVar[float] = 1.0

    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """Numerator and denominator of each example, float64 [n, 2]."""
        return np.array([self.parts(outcome) for outcome in outcomes], np.float64)  # [n, 2]

    def value(self, sums: Statistics) -> float:
        """The scaled quotient; nan without a denominator."""
        numerator, denominator = map(float, sums)
        return self.scale * numerator / denominator if denominator else math.nan

    @abstractmethod
    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Return numerator and denominator of one example."""


class Perplexity(Ratio):
    """exp(−mean log-probability) of the first references' tokens, each at its scheduled depth.

    Every token has the same weight, including the end of text. Example: log-probabilities −1, −2
    and −3 of three tokens give exp(2) = 7.39.
    """

    heading = "perplexity"
    better = "lower"
    needs_text = False

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Sum of log-probabilities, number of tokens."""
        return sum(outcome.logprobs), len(outcome.logprobs)

    def value(self, sums: Statistics) -> float:
        """exp(−quotient); inf where it exceeds what a float holds."""
        with np.errstate(over="ignore"):
            return float(np.exp(-super().value(sums)))


class RealisedDepth(Ratio):
    """Mean layers per generated token, without each text's first, which belongs to the prompt.

    Layers 6 4 3 3 2 and 6 4: (4 + 3 + 3 + 2 + 4) ÷ 5 = 3.2. If nothing was generated, the scored
    reference's tokens count.
    """

    heading = "realised depth"
    needs_text = False

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Layers run after the first token, number of such tokens."""
        generated = outcome.layers_per_token[1:]
        return sum(generated), len(generated)


class OutputTokens(Ratio):
    """Mean length of an output in tokens, without the end of text."""

    heading = "tokens"
    digits = 1

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Tokens, 1."""
        return len(outcome.token_ids), 1


class LengthRatio(Ratio):
    """Ratio of output tokens to reference tokens (the mean over a prompt's references)."""

    heading = "÷ reference"

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Output tokens, reference tokens."""
        return len(outcome.token_ids), outcome.reference_tokens


class CutShare(Ratio):
    """Percentage of outputs ended by max_tokens."""

    heading = "cut %"
    digits = 1
    scale = 100.0

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """1 if it was cut, 1."""
        return float(outcome.is_cut), 1


class Repetition(Ratio):
    """Percentage of token 4-grams that occurred before in the same output (seq-rep-4, 1908.04319).

    Tokens a b c d a b c d have the 4-grams abcd bcda cdab dabc abcd, one of five repeated: 20 %.
    """

    heading = "repeated 4-grams %"
    digits = 1
    scale = 100.0

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Repeated 4-grams, all 4-grams."""
        tokens = outcome.token_ids
        grams = [tokens[start : start + 4] for start in range(len(tokens) - 3)]
        return len(grams) - len(set(grams)), len(grams)
