"""BERT-F: similarity to the references by the embeddings of a local model (bert-score)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from ..engines.errors import MissingExtraError, UsageError
from .metrics import Metric, MetricOptions, Outcome, Statistics


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
        self._scorer = BERTScorer(model_type=str(model), num_layers=_num_layers(model))

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
    """Layers of the model in the directory ``model``."""
    path = model / "config.json"
    if not path.is_file():
        raise UsageError(
            "--bert-model",
            f"is {model}, which has no config.json; allowed: the directory of an encoder such as "
            "roberta-large",
        )
    layers = json.loads(path.read_text(encoding="utf-8")).get("num_hidden_layers")
    if not isinstance(layers, int):
        raise UsageError("--bert-model", f"is {model}, whose config.json has no num_hidden_layers")
    return layers
