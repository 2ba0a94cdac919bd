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

_LONGEST = 2**31 - 1  # transformers writes 10**30 for "not known", which its tokenizers refuse


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
        f"is computed by {library}, not installed here; run: {install_command('calib')}",
    )


class BertF(Metric):
    """Mean BERTScore F1, best reference, 0 to 100, not rescaled (arXiv 1904.09675).

    Embeddings come from the model's last layer: bert-score's own choice of a layer is known for
    published names only, not for a directory.
    """

    heading = "BERT-F"
    digits = 1
    better = "higher"

    def __init__(self, model: Path) -> None:
        try:
            from bert_score import BERTScorer
        except ImportError as error:
            raise MissingExtraError(
                "--bert-model", "needs bert-score, not installed here; run: pip install bert-score"
            ) from error
        num_layers = _num_layers(model)
        self._scorer = BERTScorer(model_type=str(model), num_layers=num_layers)

    @classmethod
    def create(cls, options: MetricOptions) -> Self | None:
        """With the model that ``options`` name; None if they name none."""
        return None if options.bert_model is None else cls(options.bert_model)

    def statistics(self, outcomes: Sequence[Outcome]) -> Statistics:
        """F1 of each example and 1, float64 [n, 2]."""
        texts = [outcome.text for outcome in outcomes]
        references = [list(outcome.references) for outcome in outcomes]
        _, _, best = self._scorer.score(texts, references)  # float32 [n]
        return np.stack([best.numpy(), np.ones(len(texts))], axis=1, dtype=np.float64)

    def value(self, sums: Statistics) -> float:
        """The mean, 0 to 100."""
        return 100 * float(sums[0] / sums[1])


def _num_layers(model: Path) -> int:
    """Layers of the model in the directory ``model``, after a look at what bert-score needs."""
    layers = _read_object(model / "config.json").get("num_hidden_layers")
    longest = _read_object(model / "tokenizer_config.json").get("model_max_length")
    problems = []
    if not isinstance(layers, int):
        problems.append(f"{model}/config.json has no num_hidden_layers; give an encoder")
    if not isinstance(longest, int) or longest > _LONGEST:
        problems.append(
            f"{model}/tokenizer_config.json says model_max_length {longest}; write how many "
            "tokens the model takes, e.g. 512"
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
            f"{path} can't be read ({error}); allowed: the directory of an encoder, e.g. of "
            "roberta-large, as save_pretrained writes it",
        ) from error
    return document if isinstance(document, dict) else {}
