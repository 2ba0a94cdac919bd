"""Metrics of generated texts.

A metric turns every example into a row of statistics; its value is a function of their column
sums. A bootstrap resample therefore needs only new sums, never new n-grams, even for BLEU.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...engines.documents import read_object
from ...engines.errors import MissingExtraError, UsageError
from ...engines.host.installation import install_command
from ..perplexity import perplexity
from .config import MetricOptions

Statistics = npt.NDArray[np.float64]
Better = Literal["higher", "lower"]
_LONGEST = 2**31 - 1  # tokenizers reject the 10**30 that transformers writes for "unknown"

_ROUGE_WORD = re.compile("[a-z0-9]")
_BERT_REMEDY = "give --bert-model the directory of an encoder, as save_pretrained writes it"


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
    """

    heading: str
    digits: int = 2
    better: Better | None = None

    @abstractmethod
    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """Return one row per example, float64 [n, k]."""

    @abstractmethod
    def value(self, sums: Statistics) -> float:
        """Return the figure from the column sums, float64 [k]; nan if it is undefined."""


@dataclass(frozen=True)
class Ratio(Metric):
    """A ratio of sums: ``scale`` × the first of ``parts`` ÷ the second, then ``curve`` of it.

    ``parts`` returns numerator and denominator of one example.
    """

    heading: str
    parts: Callable[[Outcome], tuple[float, float]]
    digits: int = 2
    better: Better | None = None
    scale: float = 1.0
    curve: Callable[[float], float] = float

    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """Numerator and denominator of each example, float64 [n, 2]."""
        return np.array([self.parts(outcome) for outcome in outcomes], np.float64)  # [n, 2]

    def value(self, sums: Statistics) -> float:
        """The scaled quotient; nan without a denominator."""
        numerator, denominator = map(float, sums)
        return self.curve(self.scale * numerator / denominator) if denominator else math.nan


def _repeated(outcome: Outcome) -> tuple[float, float]:
    """Return the numbers of repeated and of all 4-grams: 1 and 5 for a b c d a b c d."""
    tokens = outcome.token_ids
    grams = [tokens[start : start + 4] for start in range(len(tokens) - 3)]
    return len(grams) - len(set(grams)), len(grams)


PERPLEXITY = Ratio(
    # exp(−mean log-probability) of the first references' tokens, ends of text included. Tokens run
    # at their scheduled depth and have equal weight: −1, −2 and −3 give exp(2) = 7.39.
    "perplexity",
    lambda outcome: (sum(outcome.logprobs), len(outcome.logprobs)),
    better="lower",
    scale=-1.0,
    curve=perplexity,
)
REALISED_DEPTH = Ratio(
    # Mean layers per generated token, or per scored token if nothing was generated. The first token
    # of each text belongs to the prompt. Layers 6 4 3 3 2 and 6 4: (4+3+3+2 + 4) ÷ 5 = 3.2.
    "realised depth",
    lambda outcome: (sum(outcome.layers_per_token[1:]), len(outcome.layers_per_token[1:])),
)
OUTPUT_TOKENS = Ratio("tokens", lambda outcome: (len(outcome.token_ids), 1), digits=1)
LENGTH_RATIO = Ratio(
    "÷ reference", lambda outcome: (len(outcome.token_ids), outcome.reference_tokens)
)
CUT_SHARE = Ratio("cut %", lambda outcome: (float(outcome.is_cut), 1), digits=1, scale=100.0)
# Share of token 4-grams that occurred before in the same output (seq-rep-4, arXiv 1908.04319).
REPETITION = Ratio("repeated 4-grams %", _repeated, digits=1, scale=100.0)


class Bleu(Metric):
    """Corpus BLEU over all references of a prompt, computed by sacrebleu.

    A row of statistics: length of the output, length of the closest reference, matching 1- to
    4-grams, all 1- to 4-grams. ``signature`` is sacrebleu's without the number of references.
    """

    heading = "BLEU"
    digits = 1
    better: Better | None = "higher"

    def __init__(self, *, lowercase: bool = False) -> None:
        try:
            from sacrebleu.metrics.bleu import BLEU
        except ImportError as error:
            raise _missing("BLEU", "sacrebleu") from error
        self._bleu = BLEU(lowercase=lowercase)

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


def rouge_l() -> Ratio:
    """Return ROUGE-L: the mean F-measure of the longest common subsequence with the best reference.

    Its range is 0 to 100. As in rouge-score, words are lower-cased, consist of a–z and 0–9, and are
    not stemmed. Output "a b c d" and reference "a c d": precision 3/4, recall 3/3, F 6/7. Examples
    whose references have no such word do not count.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise _missing("ROUGE-L", "rouge-score") from error
    scorer = RougeScorer(["rougeL"], use_stemmer=False)

    def parts(outcome: Outcome) -> tuple[float, float]:
        if not any(_ROUGE_WORD.search(text.lower()) for text in outcome.references):
            return 0, 0
        return scorer.score_multi(outcome.references, outcome.text)["rougeL"].fmeasure, 1

    return Ratio("ROUGE-L", parts, digits=1, better="higher", scale=100.0)


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
    better: Better | None = "higher"

    def __init__(self, model: Path) -> None:
        try:
            from bert_score import BERTScorer
        except ImportError as error:
            raise MissingExtraError(
                "--bert-model", "needs bert-score, not installed; run: pip install bert-score"
            ) from error
        num_layers = _num_layers(model)
        self._scorer = BERTScorer(model_type=str(model), num_layers=num_layers)

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
    """Return the number of layers of the model in ``model``; check what bert-score needs."""
    read = partial(read_object, raises=UsageError, remedy=_BERT_REMEDY)
    layers = read(model / "config.json").get("num_hidden_layers")
    longest = read(model / "tokenizer_config.json").get("model_max_length")
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


def chosen_metrics(options: MetricOptions, *, score_only: bool = False) -> dict[str, Metric]:
    """Return the metrics by name; with ``score_only``, only those of scored references.

    Raises MissingExtraError for a metric's library that is not installed.
    """
    scored: dict[str, Metric] = {"perplexity": PERPLEXITY, "realised_depth": REALISED_DEPTH}
    if score_only:
        return scored
    bert = {} if options.bert_model is None else {"bert_f": BertF(options.bert_model)}
    return {
        "bleu": Bleu(lowercase=options.lowercase),
        "rouge_l": rouge_l(),
        **bert,
        **scored,
        "output_tokens": OUTPUT_TOKENS,
        "length_ratio": LENGTH_RATIO,
        "cut_share": CUT_SHARE,
        "repetition": REPETITION,
    }
