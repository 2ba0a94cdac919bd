"""Test loss by position: contents of buckets, sums and comparisons."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from evaluations import SKIPPING, outcome
from reports import as_json

from skipdec.calib.data.data import DataConfig
from skipdec.calib.evaluation.bootstrap import Bootstrap
from skipdec.calib.evaluation.config import EvaluationConfig, MetricOptions
from skipdec.calib.evaluation.evaluation import Evaluation, evaluate
from skipdec.calib.evaluation.inputs import prepare
from skipdec.calib.evaluation.markdown import tables
from skipdec.calib.evaluation.metrics import Outcome
from skipdec.calib.evaluation.positions import PositionProfile, position_buckets, position_profiles
from skipdec.calib.evaluation.report import report_document, write_evaluation
from skipdec.engines.errors import UsageError
from skipdec.engines.host.console import markdown_report
from skipdec.runtime.generator import Generator

TEXT = "the cat sat on the mat and the dog sat by the cat on the mat and so on " * 3


@pytest.fixture(scope="module")
def passages(
    config: EvaluationConfig, tmp_path_factory: pytest.TempPathFactory
) -> EvaluationConfig:
    """Return a configuration that only scores passages of TEXT, of one word and seven."""
    path = tmp_path_factory.mktemp("texts") / "cats.txt"
    path.write_text(TEXT)
    data = DataConfig(path=path, passage_words="1+7")
    return config.updated(data=data, max_tokens=None, score_only=True, by_position=True)


@pytest.fixture(scope="module")
def scored(passages: EvaluationConfig) -> Evaluation:
    """Return the result of ``passages``."""
    return evaluate(passages, Generator.open)


def profiles(*schedules: list[Outcome]) -> list[PositionProfile]:
    bootstrap = Bootstrap(len(schedules[0]), resamples=50, seed=0)
    return position_profiles(schedules, bootstrap, 0.95)


@pytest.mark.parametrize(
    ("lengths", "stops"),
    [
        ([1], [1]),
        ([1, 9], [1, 9]),
        ([8, 8, 8], [1, 8]),
        ([9, 9, 9], [1, 8, 9]),
        ([3, 20, 40], [1, 8, 16, 40]),
        ([100] * 3, [1, 8, 16, 32, 64, 100]),
    ],
)
def test_buckets_double_and_cover_all_positions(lengths: list[int], stops: list[int]) -> None:
    buckets = position_buckets(lengths)
    assert [bucket.stop for bucket in buckets] == stops
    assert [position for bucket in buckets for position in bucket] == list(range(max(lengths)))


def test_means_weighted_by_counts_are_the_overall_loss(scored: Evaluation) -> None:
    for row in scored.rows:
        assert row.positions is not None
        figures = row.positions.figures
        counts = [figure.num_tokens for figure in figures]
        losses = [figure.loss.value for figure in figures]
        assert sum(counts) == sum(len(entry.logprobs) for entry in row.run.outcomes)
        overall = row.figures["perplexity"].estimate.value
        assert math.exp(np.average(losses, weights=counts)) == pytest.approx(overall)


def test_excess_loss_is_zero_at_full_depth_and_at_position_0(scored: Evaluation) -> None:
    full, skipping = (row.positions for row in scored.rows)
    assert full is not None
    assert skipping is not None
    for figure in (*full.figures, skipping.figures[0]):
        gap = figure.loss_over_full
        assert (gap.value, gap.low, gap.high) == (0, 0, 0)
    assert full.late_minus_early is not None
    assert full.late_minus_early.value == 0
    assert all(figure.loss_over_full.value != 0 for figure in skipping.figures[1:])


def test_late_and_early_excess_loss_are_distinguished() -> None:
    full = [outcome(logprobs=[value] * 20) for value in (-1.0, -3.0)]
    skipping = [
        outcome(logprobs=[*[value] * 8, *[value - 0.5] * 8, *[value - 0.25] * 4])
        for value in (-1.0, -3.0)
    ]
    profile = profiles(full, skipping)[1]
    names = [figure.name for figure in profile.figures]
    assert names == ["0", "1–7", "8–15", "16–19"]
    gaps = [figure.loss_over_full for figure in profile.figures]
    assert [gap.value for gap in gaps] == [0, 0, 0.5, 0.25]
    assert gaps[2].low == gaps[2].high == 0.5, "pairing cancels the difficulty of a text"
    assert profile.figures[2].loss.low < 2.5 < profile.figures[2].loss.high
    assert profile.figures[2].perplexity.value == pytest.approx(math.exp(2.5))
    assert profile.late_minus_early is not None
    assert profile.late_minus_early.value == 0.25


def test_two_buckets_are_too_few_to_compare() -> None:
    assert profiles([outcome(logprobs=[-1.0, -1.0])])[0].late_minus_early is None


def test_scoring_only_generates_no_texts(passages: EvaluationConfig) -> None:
    with patch.object(Generator, "generate") as generate:
        result = evaluate(passages, Generator.open)
    generate.assert_not_called()
    assert list(result.metrics) == ["perplexity", "realised_depth"]
    assert all(math.isnan(row.speedup.value) for row in result.rows)
    assert result.examples == ()


def test_scoring_only_finds_the_perplexity_of_a_whole_run(config: EvaluationConfig) -> None:
    quick = config.updated(max_tokens=None, score_only=True)
    rows = evaluate(quick, Generator.open).rows
    whole = evaluate(config, Generator.open).rows
    for one, other in zip(rows, whole, strict=True):
        assert one.figures["perplexity"] == other.figures["perplexity"]


def test_passages_are_scored_alone_and_without_an_end_token(passages: EvaluationConfig) -> None:
    inputs = prepare(passages)
    texts = [prompt.text + prompt.references[0] for prompt in inputs.prompts]
    assert "".join(texts) == TEXT[: len("".join(texts))]
    assert [len(prompt.references) for prompt in inputs.prompts] == [1] * len(texts)
    for prompt, encoded in zip(inputs.prompts, inputs.bundles[0].prompts, strict=True):
        assert len(encoded.target_ids) == len(prompt.references[0].encode()), "one token per byte"


def test_a_passage_is_cut_where_the_bundles_positions_end(passages: EvaluationConfig) -> None:
    assert passages.data.path.read_text() == TEXT
    longer = passages.updated(data=DataConfig(path=passages.data.path, passage_words="1+30"))
    for encoded in prepare(longer).bundles[0].prompts:
        assert len(encoded.token_ids) + len(encoded.target_ids) == 64
    too_long = passages.updated(data=DataConfig(path=passages.data.path, passage_words="30+1"))
    with pytest.raises(UsageError, match="the bundle holds 64 positions"):
        prepare(too_long)


def test_text_options_are_refused_without_texts(config: EvaluationConfig) -> None:
    with pytest.raises(UsageError, match="3 problems") as error:
        config.updated(score_only=True, temperature=1.0, metrics=MetricOptions(lowercase=True))
    assert "max_tokens has no effect: score_only generates no texts" in str(error.value)
    assert "metrics.lowercase has no effect: score_only" in str(error.value)


def test_tables_json_and_picture_show_positions(scored: Evaluation, tmp_path: Path) -> None:
    text = markdown_report(tables(scored))
    assert "references scored, no texts generated" in text
    assert "speed-up" not in text
    assert "| schedule | 0 | 1–7 | 8–15 |" in text
    assert "| late − early |" in text
    document = as_json(report_document(scored))
    figures = document["rows"][1]["positions"]["figures"]
    assert [figure["first"] for figure in figures][:3] == [0, 1, 8]
    assert document["rows"][1]["schedule"] == SKIPPING
    assert document["rows"][1]["speedup"]["value"] is None
    names = write_evaluation(tmp_path / "results", scored, document, force=False)
    assert names == ("evaluation.json", "evaluation.md", "positions.png")
    assert (tmp_path / "results" / "positions.png").read_bytes().startswith(b"\x89PNG")
    write_evaluation(tmp_path / "results", scored, document, force=True)


def test_positions_are_absent_without_the_option(evaluation: Evaluation) -> None:
    assert report_document(evaluation)["rows"][0]["positions"] is None
    assert "by position" not in markdown_report(tables(evaluation))
