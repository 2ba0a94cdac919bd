"""``evaluate --draft`` repeats full-depth texts with drafts, compares, counts and times them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_documents import add_ngrams
from command_line import config as options_file
from command_line import run
from evaluations import SKIPPING, write_rows
from fixture_types import Checkpoints
from text_bundles import STRUCTURE, copy_with_tokenizer

from skipdec.calib.commands.evaluate import require_equal_texts
from skipdec.calib.data.data import DataConfig
from skipdec.calib.evaluation.config import BundleChoice, EvaluationConfig
from skipdec.calib.evaluation.evaluation import Evaluation, evaluate
from skipdec.calib.evaluation.inputs import prepare
from skipdec.calib.evaluation.markdown import tables
from skipdec.calib.evaluation.report import report_document
from skipdec.engines.errors import ConfigurationError, SkipDecError, UsageError
from skipdec.engines.host.console import markdown_report
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.drafting.resolver import DraftResolver
from skipdec.runtime.generator import Generator
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.tokens.outputs import CompletionOutput

pytestmark = [
    pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled"),
    pytest.mark.usefixtures("own_thread_pools"),
]


@pytest.fixture(scope="module")
def config(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> EvaluationConfig:
    directory = tmp_path_factory.mktemp("drafts")
    source = copy_with_tokenizer(checkpoint(STRUCTURE), directory / "checkpoint")
    bundle = directory / "bundle"
    export(
        ExportConfig(
            model=str(source), output=bundle, quantize="int8", kernels="skipdec", verify=False
        )
    )
    return EvaluationConfig(
        bundles=(BundleChoice("tiny", bundle),),
        data=DataConfig(path=write_rows(directory / "rows.jsonl")),
        schedules=(SKIPPING,),
        drafts=("own,adapt=no", "lookup"),
        batch_size=2,
        max_tokens=24,
        seconds=0,
        resamples=5,
    )


@pytest.fixture(scope="module")
def evaluation(config: EvaluationConfig) -> Evaluation:
    return evaluate(config, Generator.open)


def test_drafted_texts_are_equal_and_not_scored_again(evaluation: Evaluation) -> None:
    assert [row.run.name for row in evaluation.rows] == ["full", SKIPPING]
    assert [row.run.name for row in evaluation.drafts] == ["own,adapt=no", "lookup"]
    for row in evaluation.drafts:
        assert (row.run.num_equal, row.run.num_texts) == (3, 3)
    assert evaluation.changed_by_drafts == ()


def test_draft_counts_are_reported_next_to_full_depth(evaluation: Evaluation) -> None:
    counts = evaluation.drafts[0].run.counts
    assert 0 < counts.accepted < counts.drafted
    table = markdown_report(tables(evaluation))
    assert "| tiny | own,adapt=no | 3 of 3 |" in table
    assert f"| {counts.tokens_per_pass:.2f} | {counts.acceptance:.2f} |" in table
    document = report_document(evaluation)["drafts"][0]
    assert document["num_equal"] == 3
    assert document["acceptance"] == counts.acceptance


def test_a_draft_learns_from_earlier_prompts_only(config: EvaluationConfig) -> None:
    """The draft measured second must not have learnt the texts of the first."""
    twice = evaluate(
        config.updated(drafts=("own,adapt=no", "own,adapt=no,tokens=6")), Generator.open
    )
    alone = evaluate(config.updated(drafts=("own,adapt=no,tokens=6",)), Generator.open)
    assert twice.drafts[1].run.counts == alone.drafts[0].run.counts


def test_changed_texts_are_counted_and_fail_the_command(
    config: EvaluationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Row.output

    def changed(row: Row) -> CompletionOutput:
        found = output(row)
        return found if row.drafts is None else replace(found, text="else")

    monkeypatch.setattr(Row, "output", changed)
    result = evaluate(config.updated(drafts=("own",)), Generator.open)
    assert result.drafts[0].run.num_equal == 0
    assert "Drafts changed texts: tiny, own." in markdown_report(tables(result))
    with pytest.raises(SkipDecError, match="own changed 3 of 3 texts"):
        require_equal_texts(result)


def test_drafts_begin_with_the_ngrams_of_the_bundle(
    config: EvaluationConfig, evaluation: Evaluation, tmp_path: Path
) -> None:
    knowing = Path(shutil.copytree(config.bundles[0].path, tmp_path / "knowing"))
    add_ngrams(knowing, json.dumps({"ngrams": [[token, 5, 2, 2] for token in range(300)]}))
    bundles = (BundleChoice("tiny", knowing),)
    result = evaluate(config.updated(bundles=bundles, drafts=("own,adapt=no",)), Generator.open)
    assert result.drafts[0].run.counts.drafted > evaluation.drafts[0].run.counts.drafted


def test_auto_chooses_the_bundles_draft(
    config: EvaluationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = config.updated(drafts=("auto",))
    assert str(prepare(auto).bundles[0].drafts["auto"]) == "own"
    monkeypatch.setattr(
        "skipdec.calib.evaluation.inputs.DraftResolver",
        lambda manifest: DraftResolver(manifest.model_copy(update={"draft": "off"})),
    )
    with pytest.raises(UsageError, match="the bundle recommends none"):
        prepare(auto)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"drafts": ("onw",)}, "did you mean 'own'"),
        ({"drafts": ("ends:6",)}, "draft ends:6: ends:6 runs 6 layers of 6"),
        (
            {"score_only": True, "max_tokens": None},
            "drafts has no effect: score_only generates no texts",
        ),
    ],
)
def test_impossible_drafts_are_refused_before_work(
    config: EvaluationConfig, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises((ConfigurationError, UsageError), match=problem):
        prepare(config.updated(**changes))


def test_the_command_prints_the_table(config: EvaluationConfig) -> None:
    arguments = ["evaluate", str(config.bundles[0].path), "--data", str(config.data.path)]
    options = ["--max-tokens", "8", "--draft", "own", "--json", "-q", "--seconds", "0"]
    result = run(*arguments, *options, *options_file(resamples=5))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["drafts"][0]["num_texts"] == 3
