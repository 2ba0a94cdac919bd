"""Metrics against reference texts: BLEU (sacrebleu) and ROUGE-L (rouge-score)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ..engines.errors import MissingExtraError
from .metrics import Metric, MetricOptions, Outcome, Ratio, Statistics


class Bleu(Metric):
    """Corpus BLEU, all references of a prompt at once, as sacrebleu computes it.

    A row of statistics: length of the output, length of the closest reference, matching 1- to
    4-grams, all 1- to 4-grams. ``signature`` is sacrebleu's, but for the number of references.
    """

    heading = "BLEU"
    digits = 1
    better = "higher"

    def __init__(self, *, lowercase: bool = False) -> None:
        try:
            from sacrebleu.metrics.bleu import BLEU
        except ImportError as error:
            raise _missing("BLEU", "sacrebleu") from error
        self._bleu = BLEU(lowercase=lowercase)

    @classmethod
    def create(cls, options: MetricOptions) -> Self:
        """With or without upper case."""
        return cls(lowercase=options.lowercase)

    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """Lengths and n-gram counts, float64 [n, 10]."""
        return np.array([self._row(outcome) for outcome in outcomes], np.float64)

    def value(self, sums: Statistics) -> float:
        """sacrebleu's score of the summed counts, 0 to 100."""
        lengths, counts, totals = np.split(
            sums.astype(np.int64), (2, 2 + self._bleu.max_ngram_order)
        )
        score = self._bleu.compute_bleu(
            correct=counts.tolist(),
            total=totals.tolist(),
            sys_len=int(lengths[0]),
            ref_len=int(lengths[1]),
            smooth_method=self._bleu.smooth_method,
            smooth_value=self._bleu.smooth_value,
        )
        return float(score.score)

    def _row(self, outcome: Outcome) -> list[int]:
        """One example is a corpus of one, whose counts add up."""
        score = self._bleu.corpus_score([outcome.text], [[text] for text in outcome.references])
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]


class RougeL(Ratio):
    """Mean F-measure of the longest common subsequence, best reference, 0 to 100.

    rouge-score's: lower-cased words of letters and digits, no stemming. Output "a b c d",
    reference "a c d": precision 3/4, recall 3/3, F 6/7.
    """

    heading = "ROUGE-L"
    digits = 1
    better = "higher"
    scale = 100.0

    def __init__(self) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise _missing("ROUGE-L", "rouge-score") from error
        self._scorer = RougeScorer(["rougeL"], use_stemmer=False)

    def parts(self, outcome: Outcome) -> tuple[float, float]:
        """The best reference's F-measure, 1."""
        scores = self._scorer.score_multi(outcome.references, outcome.text)
        return scores["rougeL"].fmeasure, 1


def _missing(metric: str, library: str) -> MissingExtraError:
    return MissingExtraError(
        metric,
        f"is computed by {library}, not installed here; run: pip install 'skipdec[calib]'",
    )
