"""Metrics against reference texts: BLEU (sacrebleu), ROUGE-L (rouge-score), BERT-F."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...engines.errors import MissingExtraError, UsageError
from ...engines.host.installation import install_command
from .config import MetricOptions
from .metrics import Metric, Outcome, Ratio, Statistics

_LONGEST = 2**31 - 1  # transformers writes 10**30 for "unknown", which its tokenizers reject


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
