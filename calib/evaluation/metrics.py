"""Metrics of generated texts, each a function of sums over the examples.

A metric turns every example into a row of statistics; its value is a function of their column
sums. A bootstrap resample therefore needs only new sums, never new n-grams, even for BLEU.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from ...engines.errors import MissingExtraError, UsageError
from ...engines.host.installation import install_command
from .config import MetricOptions

Statistics = npt.NDArray[np.float64]
_LONGEST = 2**31 - 1  # transformers writes 10**30 for "unknown", which its tokenizers reject


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


class Bleu(Metric):
    """Corpus BLEU over all references of a prompt, computed by sacrebleu.

    A row of statistics: length of the output, length of the closest reference, matching 1- to
    4-grams, all 1- to 4-grams. ``signature`` is sacrebleu's except for the number of references.
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
        """Create the metric, case-sensitive or not."""
        return cls(lowercase=options.lowercase)

    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """Lengths and n-gram counts, float64 [n, 10]."""
        return np.array([self._row(outcome) for outcome in outcomes], np.float64)

    def value(self, sums: Statistics) -> float:
        """Return sacrebleu's score of the summed counts, 0 to 100."""
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
        """Score one example as a corpus of one; its counts add up to those of the whole corpus."""
        score = self._bleu.corpus_score([outcome.text], [[text] for text in outcome.references])
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]


class RougeL(Ratio):
    """Mean F-measure of the longest common subsequence with the best reference, 0 to 100.

    As in rouge-score: lower-cased words of letters and digits, no stemming. Output "a b c d",
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
        f"needs {library}, which is not installed; run: {install_command('calib')}",
    )


class BertF(Metric):
    """Mean BERTScore F1 with the best reference, 0 to 100, not rescaled (arXiv 1904.09675).

    Embeddings come from the model's last layer, because bert-score knows its preferred layer only
    for published model names, not for a directory.
    """

    heading = "BERT-F"
    digits = 1
    better = "higher"

    def __init__(self, model: Path) -> None:
        try:
            from bert_score import BERTScorer
        except ImportError as error:
            raise MissingExtraError(
                "--bert-model", "needs bert-score, not installed; run: pip install bert-score"
            ) from error
        num_layers = _num_layers(model)
        self._scorer = BERTScorer(model_type=str(model), num_layers=num_layers)

    @classmethod
    def create(cls, options: MetricOptions) -> Self | None:
        """Create the metric with the model in ``options``; None if they name none."""
        return None if options.bert_model is None else cls(options.bert_model)

    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """F1 of each example and 1, float64 [n, 2]."""
        texts = [outcome.text for outcome in outcomes]
        references = [list(outcome.references) for outcome in outcomes]
        _, _, best = self._scorer.score(texts, references)  # float32 [n]
        return np.stack([best.numpy(), np.ones(len(texts))], axis=1, dtype=np.float64)

    def value(self, sums: Statistics) -> float:
        """Return the mean, 0 to 100."""
        return 100 * float(sums[0] / sums[1])


def _num_layers(model: Path) -> int:
    """Return the number of layers of the model in ``model``, after checking bert-score's needs."""
    layers = _read_object(model / "config.json").get("num_hidden_layers")
    longest = _read_object(model / "tokenizer_config.json").get("model_max_length")
    problems = []
    if not isinstance(layers, int):
        problems.append(f"{model}/config.json has no num_hidden_layers; give an encoder")
    if not isinstance(longest, int) or longest > _LONGEST:
        problems.append(
            f"{model}/tokenizer_config.json has model_max_length {longest}; set it to the "
            "model's maximum length in tokens, e.g. 512"
        )
    if problems or not isinstance(layers, int):
        raise UsageError("--bert-model", *problems)
    return layers


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            "--bert-model",
            f"{path} can't be read ({error}); give the directory of an encoder, e.g. "
            "roberta-large, as save_pretrained writes it",
        ) from error
    return document if isinstance(document, dict) else {}


METRICS: Mapping[str, type[Metric]] = {
    "bleu": Bleu,
    "rouge_l": RougeL,
    "bert_f": BertF,
    "perplexity": Perplexity,
    "realised_depth": RealisedDepth,
    "output_tokens": OutputTokens,
    "length_ratio": LengthRatio,
    "cut_share": CutShare,
    "repetition": Repetition,
}
