"""Check metrics against hand-computed values, literal definitions and libraries."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluations import outcome
from hypothesis import given
from hypothesis import strategies as st

from skipdec.calib.evaluation.metrics import (
    CUT_SHARE,
    LENGTH_RATIO,
    OUTPUT_TOKENS,
    PERPLEXITY,
    REALISED_DEPTH,
    REPETITION,
    BertF,
    Bleu,
    Metric,
    MetricOptions,
    Outcome,
    chosen_metrics,
    rouge_l,
)
from skipdec.engines.errors import MissingExtraError, UsageError
from skipdec.runtime.schedule import realised_depth

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=8).map(" ".join)


def value(metric: Metric, *outcomes: Outcome) -> float:
    return metric.value(metric.statistics(outcomes).sum(axis=0))


def test_bleu_of_a_sentence_is_the_geometric_mean_of_precisions() -> None:
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert value(Bleu(), outcome("a b c d e", references=("a b c d f",))) == pytest.approx(expected)


def test_bleu_takes_the_closest_reference_for_brevity() -> None:
    short = outcome("a b c d", references=("a b c d e f g h",))
    assert value(Bleu(), short) == pytest.approx(100 * math.exp(1 - 8 / 4))
    both = outcome("a b c d", references=("a b c d e f g h", "x y z w v"))
    assert value(Bleu(), both) == pytest.approx(100 * math.exp(1 - 5 / 4))


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=6))
def test_bleu_from_summed_counts_equals_corpus_bleu(rows: list[tuple[str, str, str]]) -> None:
    from sacrebleu import corpus_bleu

    texts, first, second = zip(*rows, strict=True)
    outcomes = [
        outcome(text, references=references)
        for text, *references in zip(texts, first, second, strict=True)
    ]
    expected = corpus_bleu(list(texts), [list(first), list(second)]).score
    assert value(Bleu(), *outcomes) == pytest.approx(expected)


def test_prompts_may_have_different_numbers_of_references() -> None:
    outcomes = (outcome("a b c d"), outcome("e f g h", references=("x", "e f g h")))
    assert value(Bleu(), *outcomes) == pytest.approx(
        value(Bleu(), outcomes[0], outcome("e f g h", references=("e f g h",)))
    )


def test_bleu_ignores_case_only_with_lowercase() -> None:
    shouted = outcome("A B C D", references=("a b c d",))
    assert value(Bleu(), shouted) < 50
    assert value(Bleu(lowercase=True), shouted) == pytest.approx(100)


def test_rouge_l_of_one_text_equals_a_hand_computed_value() -> None:
    assert value(rouge_l(), outcome("a b c d", references=("a c d",))) == pytest.approx(600 / 7)


def test_rouge_l_ignores_references_in_other_scripts() -> None:
    chinese = outcome("春眠不觉晓", references=("春眠不觉晓",))
    assert math.isnan(value(rouge_l(), chinese))
    assert value(rouge_l(), chinese, outcome("a b", references=("春", "A b"))) == pytest.approx(100)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_rouge_l_is_the_best_f_measure_of_longest_common_subsequences(
    text: str, references: list[str]
) -> None:
    def f_measure(reference: str) -> float:
        common = longest_common_subsequence(text.split(), reference.split())
        return 2 * common / (len(text.split()) + len(reference.split()))

    expected = 100 * max(map(f_measure, references))
    assert value(rouge_l(), outcome(text, references=tuple(references))) == pytest.approx(expected)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return longest_common_subsequence(first[:-1], second[:-1]) + 1
    return max(
        longest_common_subsequence(first[:-1], second),
        longest_common_subsequence(first, second[:-1]),
    )


@pytest.mark.parametrize(
    ("metric", "outcomes", "expected"),
    [
        (PERPLEXITY, [{"logprobs": (-1.0, -2.0)}, {"logprobs": (-3.0,)}], math.exp(2)),
        (PERPLEXITY, [{"logprobs": (-1000.0,)}], math.inf),
        (
            REALISED_DEPTH,
            [{"layers_per_token": (6, 4, 3, 3, 2)}, {"layers_per_token": (6, 4)}],
            3.2,
        ),
        (REALISED_DEPTH, [{"layers_per_token": (6,)}], math.nan),
        (OUTPUT_TOKENS, [{"token_ids": (1, 2, 3)}, {"token_ids": ()}], 1.5),
        (
            LENGTH_RATIO,
            [
                {"token_ids": (1, 2, 3), "reference_tokens": 2.5},
                {"token_ids": (1,), "reference_tokens": 5.5},
            ],
            0.5,
        ),
        (CUT_SHARE, [{"is_cut": True}, {}, {}, {}], 25.0),
        (REPETITION, [{"token_ids": (1, 2, 3, 4, 1, 2, 3, 4)}, {"token_ids": (1, 2, 3)}], 20.0),
        (REPETITION, [{"token_ids": (7,) * 6}], 200 / 3),
        (REPETITION, [{"token_ids": (1, 2, 3)}], math.nan),
    ],
)
def test_ratios_equal_hand_computed_values(
    metric: Metric, outcomes: list[dict[str, Any]], expected: float
) -> None:
    actual = value(metric, *(outcome(**fields) for fields in outcomes))
    assert actual == pytest.approx(expected, nan_ok=True)


def test_realised_depth_equals_the_runtimes() -> None:
    layers = (6, 5, 3, 3, 2, 2)
    assert value(REALISED_DEPTH, outcome(layers_per_token=layers)) == realised_depth(layers)


def test_missing_libraries_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("sacrebleu.metrics.bleu", "rouge_score.rouge_scorer", "bert_score"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[calib\]'"):
        Bleu()
    with pytest.raises(MissingExtraError, match=r"pip install .*\[calib\]'"):
        rouge_l()
    with pytest.raises(MissingExtraError, match="pip install bert-score"):
        BertF(tmp_path)
    assert list(chosen_metrics(MetricOptions(), score_only=True)) == [
        "perplexity",
        "realised_depth",
    ]


def test_bert_f_takes_the_best_reference_of_a_local_model(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    with pytest.raises(UsageError, match=r"config\.json \| can't be read .* give --bert-model"):
        BertF(tmp_path)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UsageError, match=r"config\.json \| .*is a pipe"):
        BertF(tmp_path)
    (tmp_path / "config.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    vocabulary = str(tmp_path / "vocab.txt")
    BertTokenizerFast(vocabulary, model_max_length=32).save_pretrained(tmp_path)
    BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
        )
    ).save_pretrained(tmp_path)
    metric = BertF(tmp_path)
    same = outcome("a b c", references=("f g h", "a b c"))
    assert value(metric, same) == pytest.approx(100, abs=1e-3)
    other = outcome("a b c", references=("f g h",))
    assert np.isfinite(value(metric, other))
    assert value(metric, other) < 99
