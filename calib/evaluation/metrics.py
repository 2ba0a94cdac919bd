"""Metrics: figures of generated texts, each a function of sums over the examples.

A metric turns every example into a row of statistics; its value is a function of their column
sums. So a bootstrap resample needs new sums only, never new n-grams, for BLEU as for a mean.
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
    """What one bundle wrote for one prompt at one schedule, and how it scores the reference."""

    text: str
    token_ids: tuple[int, ...]  # without the end-of-text token
    is_cut: bool  # ended by max_tokens, not by the model
    layers_per_token: tuple[int, ...]  # of all output tokens, the end-of-text token included
    references: tuple[str, ...]
    reference_tokens: float  # mean length of the references, by the bundle's tokenizer
    logprobs: tuple[float, ...]  # of the first reference's tokens and the end of text, at depth


class Metric(ABC):
    """One figure; ``heading`` names it in tables.

    ``better`` says which way is up for a measure of quality; None: a description, no quality.
    ``needs_text``: about the text that was written; False: about the scored reference alone.
    """

    heading: ClassVar[str]
    digits: ClassVar[int] = 2
    better: ClassVar[Literal["higher", "lower"] | None] = None
    needs_text: ClassVar[bool] = True

    @classmethod
    def create(cls, options: MetricOptions) -> Self | None:
        """Return the metric as ``options`` ask for it; None if they don't."""
        return cls()

    @abstractmethod
    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """One row an example, float64 [n, k]."""

    @abstractmethod
    def value(self, sums: Statistics) -> float:
        """The figure from the column sums, float64 [k]; nan where it is not defined."""


class Ratio(Metric):
    """A sum over a sum: ``scale`` × column 0 ÷ column 1."""

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
        """Numerator and denominator of one example."""


class Perplexity(Ratio):
    """exp(−mean log-probability) of the first references' tokens, each at its scheduled depth.

    Every token weighs the same, the end of text included. Log-probabilities −1, −2 and −3 of
    three tokens: exp(2) = 7.39.
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
    """Mean layers of all generated tokens but each text's first, which belongs to the prompt.

    Layers 6 4 3 3 2 and 6 4: (4 + 3 + 3 + 2 + 4) ÷ 5 = 3.2. Where nothing was generated, of the
    scored reference's tokens.
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
    """Tokens of the outputs over those of the references (the mean of a prompt's references)."""

    heading = "÷ reference"

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Output tokens, reference tokens."""
        return len(outcome.token_ids), outcome.reference_tokens


class CutShare(Ratio):
    """Outputs that max_tokens ended, per cent."""

    heading = "cut %"
    digits = 1
    scale = 100.0

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """1 if it was cut, 1."""
        return float(outcome.is_cut), 1


class Repetition(Ratio):
    """Token 4-grams that the same output had before, per cent of all (seq-rep-4, 1908.04319).

    Tokens a b c d a b c d: 4-grams abcd bcda cdab dabc abcd, one of five repeated: 20 %.
    """

    heading = "repeated 4-grams %"
    digits = 1
    scale = 100.0

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """Repeated 4-grams, all 4-grams."""
        tokens = outcome.token_ids
        grams = [tokens[start : start + 4] for start in range(len(tokens) - 3)]
        return len(grams) - len(set(grams)), len(grams)
