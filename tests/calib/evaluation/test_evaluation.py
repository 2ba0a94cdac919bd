"""Check figures against the model's, the order of work, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
from evaluations import SKIPPING
from fixture_types import Exported
from recorded_events import RecordedEvents
from reference import Plan, full_plan, linear_plan, reference_logits
from reports import as_json
from text_bundles import STRUCTURE
from transformers import OPTForCausalLM

from skipdec.calib.data.data import DataConfig, LongPrompts
from skipdec.calib.evaluation.config import BundleChoice, EvaluationConfig
from skipdec.calib.evaluation.evaluation import Evaluation, evaluate
from skipdec.calib.evaluation.inputs import prepare
from skipdec.calib.evaluation.markdown import tables
from skipdec.calib.evaluation.report import report_document
from skipdec.calib.evaluation.running import run_bundle
from skipdec.engines.errors import BundleError, UsageError
from skipdec.engines.host.console import markdown_report
from skipdec.runtime.generator import Generator
from skipdec.runtime.measuring.meter import Turns
from skipdec.runtime.schedule.text import format_schedule
from skipdec.runtime.tokens.sampling import SamplingParams


def test_rows_with_equal_prompts_become_references_of_one_prompt(evaluation: Evaluation) -> None:
    assert [prompt.text for prompt in evaluation.prompts] == ["ab", "cd", "efg"]
    assert evaluation.prompts[0].references == ("some text", "a second reference")
    assert evaluation.prompts[2].source == "rows.jsonl, line 4"


def test_full_depth_always_runs_first(evaluation: Evaluation, config: EvaluationConfig) -> None:
    events = RecordedEvents()
    limited = evaluate(config.updated(limit=1, schedules=("3x", "full")), Generator.open, events)
    assert [row.run.name for row in limited.rows] == ["full", "3x"]
    assert events.totals["evaluating"] == events.counts["evaluating"] == 2
    assert [row.run.name for row in evaluation.rows] == ["full", SKIPPING]
    assert evaluation.rows[0].speedup.value == evaluation.rows[0].run.token_speedup.value == 1


@pytest.mark.parametrize(
    ("row", "plan"), [(0, full_plan(6)), (1, linear_plan(6, 4, 2, 1, 4))], ids=["full", "2x"]
)
def test_perplexity_equals_the_torch_models_at_the_same_depth(
    evaluation: Evaluation, reference_model: Callable[[str], OPTForCausalLM], row: int, plan: Plan
) -> None:
    prompts = evaluation.rows[row].prepared.prompts
    logprobs = []
    for prompt in prompts:
        assert prompt.target_ids[-1] == 2, "the end of text counts too"
        logits = reference_logits(
            reference_model(STRUCTURE), prompt.token_ids, prompt.target_ids[:-1], plan
        )
        chosen = logits.log_softmax(-1)[range(len(prompt.target_ids)), list(prompt.target_ids)]
        logprobs += chosen.tolist()
    figure = evaluation.rows[row].figures["perplexity"].estimate
    assert figure.value == pytest.approx(np.exp(-np.mean(logprobs)), rel=1e-4)


def test_texts_and_depth_match_the_generator(evaluation: Evaluation, bundle: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=6)
    with Generator.open(bundle) as generator:
        results = generator.generate(["ab", "cd", "efg"], params, schedule=SKIPPING)
    row = evaluation.rows[1]
    assert [text.text for text in row.run.outcomes] == [item.outputs[0].text for item in results]
    layers = [depth for item in results for depth in item.outputs[0].layers_per_token[1:]]
    assert row.figures["realised_depth"].estimate.value == pytest.approx(np.mean(layers))
    assert row.run.schedule.average_budget() == 3.0


def test_schedules_take_turns_chunk_by_chunk(config: EvaluationConfig, bundle: Path) -> None:
    prepared = prepare(config).bundles[0]
    steps: list[str] = []
    with (
        Generator.open(bundle) as generator,
        patch.object(generator, "generate", wraps=generator.generate) as generate,
    ):
        runs = run_bundle(generator, prepared, config, steps.append)
    calls = [
        (format_schedule(call.kwargs["schedule"]), len(call.args[0]))
        for call in generate.call_args_list
    ]
    warm_up = [("full", 2), (SKIPPING, 2)]
    measured = [(name, rows) for rows in (2, 1) for name in ("full", SKIPPING)]
    assert calls == warm_up + measured + measured[:2], "three turns at least"
    assert [len(run.chunk_seconds) for run in runs] == [2, 2], "the warm-up is not measured"
    assert [len(run.outcomes) for run in runs] == [3, 3], "texts are scored once"
    assert steps == [f"tiny, {name}" for name, _ in measured]


def test_equal_lengths_compare_with_full_depth_of_the_same_length(
    config: EvaluationConfig, bundle: Path
) -> None:
    """A full-depth run that ends a text early would make every schedule look slow."""
    equal = config.updated(equal_lengths=True, batch_size=2)
    with (
        Generator.open(bundle) as generator,
        patch.object(generator, "generate", wraps=generator.generate) as generate,
    ):
        result = evaluate(equal, lambda _: generator)
    full, skipping = (row.run for row in result.rows)
    calls = generate.call_args_list[2:][2::3]  # after the warm-up: full, skipping, full as long
    assert [format_schedule(call.kwargs["schedule"]) for call in calls] == ["full"] * 3
    forced = [params for call in calls for params in call.args[1]]
    assert all(params.ignore_eos for params in forced)
    lengths = [len(text.layers_per_token) for text in skipping.outcomes]
    assert [params.max_tokens for params in forced] == [*lengths, *lengths[:2]]
    assert full.full_depth_seconds == []
    assert len(skipping.full_depth_seconds) == 2
    assert str(skipping.speedup) == str(skipping.token_speedup)
    assert "| speed-up, equal lengths |" in markdown_report(tables(result))
    assert "per token" not in markdown_report(tables(result))


def test_a_speedup_beyond_the_layers_run_is_not_printed(config: EvaluationConfig) -> None:
    """Running 2 to 4 of 6 layers gains less than 3, whatever a window of 27 ms measures."""

    def measured(turn: Callable[[int], dict[object, float]], *_: object, items: int, **__: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        turns = [turn(item) for item in range(items)]
        return Turns(
            [{key: 0.01 if SKIPPING in key else 0.09 for key in one} for one in turns], items
        )

    with patch("skipdec.calib.evaluation.running.measure", measured):
        full, skipping = (result := evaluate(config, Generator.open)).rows
    assert full.speedup.disturbed == ""
    assert "9.00× was measured, but layers allow at most 1." in skipping.speedup.disturbed
    text = markdown_report(tables(result))
    assert f"disturbed tiny, {SKIPPING}: {skipping.speedup.disturbed}; evaluate again" in text
    assert "| disturbed | disturbed |" in text
    assert as_json(report_document(result))["rows"][1]["speedup"]["value"] is None


def test_the_bundles_schedule_is_the_default(config: EvaluationConfig) -> None:
    schedules = prepare(config.updated(schedules=())).bundles[0].schedules
    assert list(schedules.values()) == ["full", SKIPPING]


def test_seeds_decide_sampled_texts(config: EvaluationConfig) -> None:
    def texts(seed: int) -> list[str]:
        sampled = config.updated(temperature=1.0, seed=seed)
        return [item.text for item in evaluate(sampled, Generator.open).rows[0].run.outcomes]

    assert texts(1) == texts(1) != texts(2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 2**32), ("temperature", 1e7), ("limit", 2**63), ("resamples", 10**12)],
)
def test_values_beyond_any_use_are_refused_before_a_bundle_is_opened(
    config: EvaluationConfig, name: str, value: float
) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*; allowed: .*"):
        config.updated(**{name: value})


def test_bundles_of_one_name_are_averaged_with_a_range(
    config: EvaluationConfig, bundle: Path
) -> None:
    assert evaluate(config, Generator.open).averages == ()
    pair = config.updated(bundles=(BundleChoice("a", bundle), BundleChoice("a", bundle)))
    result = evaluate(pair, Generator.open)
    assert [(entry.schedule, entry.num_bundles) for entry in result.averages] == [
        ("full", 2),
        (SKIPPING, 2),
    ]
    spread = result.averages[1].speedup
    speedups = [row.speedup.value for row in result.rows if row.run.name == SKIPPING]
    assert spread.mean == pytest.approx(np.mean(speedups), nan_ok=True)
    assert "| a | full | 2 | 1.00 [1.00, 1.00] |" in markdown_report(tables(result))


@pytest.mark.parametrize(("long_prompts", "lengths"), [("cut", [3, 56]), ("drop", [3])])
def test_prompts_without_room_are_cut_or_dropped_and_counted(
    long_prompts: LongPrompts, lengths: list[int], config: EvaluationConfig, tmp_path: Path
) -> None:
    """4 of 64 positions are scored; 60 contain <s>, eleven words of bytes and the colon."""
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": "a", "completion": "c"}, {"prompt": "word " * 20, "completion": "yz."}]
    path.write_text("\n".join(map(json.dumps, rows)))
    data = DataConfig(path=path, long_prompts=long_prompts, prompt_template="{prompt}:")
    found = evaluate(config.updated(data=data), Generator.open)
    prompts = found.rows[0].prepared.prompts
    tokens = [prompt.token_ids for prompt in prompts]
    assert [len(prompt) for prompt in tokens] == lengths
    assert len({prompt[-1] for prompt in tokens}) == 1  # the template's colon stays
    counts = {"cut": "1 cut for tiny", "drop": "1 more left out"}
    assert f"(too long: {counts[long_prompts]})" in markdown_report(tables(found))
    document = report_document(found)
    assert document["num_dropped"] + document["rows"][0]["num_cut"] == 1


def test_bad_rows_bundles_and_schedules_are_refused_together(
    config: EvaluationConfig, exported: Exported, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "ab", "completion": ""}\n')
    missing = BundleChoice("none", tmp_path / "none")
    untold = BundleChoice("untold", exported("pre_norm"))
    bad = config.updated(
        data=DataConfig(path=path),
        bundles=(missing, untold, *config.bundles),
        schedules=("9x", "step:max=4,min=2,steps=3"),
        max_tokens=None,
    )
    never_opened = Mock(spec=Generator.open)
    with pytest.raises(UsageError) as error:
        evaluate(bad, never_opened)
    never_opened.assert_not_called()
    expected = (
        "data: bad.jsonl, line 1",
        f"{missing.path}: does not exist",
        f"{untold.path}: preset 9x",
        f"{untold.path}: has no tokenizer",
        f"{config.bundles[0].path}: preset 9x",
    )
    for problem, text in zip(error.value.problems, expected, strict=True):
        assert problem.startswith(text)


def test_one_bad_bundle_does_not_hide_the_data_of_the_others(
    config: EvaluationConfig, tmp_path: Path
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 63, "completion": "yz"}))
    missing = BundleChoice("none", tmp_path / "none")
    bad = config.updated(data=DataConfig(path=path), bundles=(missing, *config.bundles))
    with pytest.raises(UsageError, match=r"does not exist(?s:.*)line 1: prompt and first"):
        prepare(bad)
    dropping = DataConfig(path=path, long_prompts="drop")
    with pytest.raises(UsageError, match=r"does not exist(?s:.*)has no prompts that fit; all 1"):
        prepare(bad.updated(data=dropping))
    with pytest.raises(BundleError, match="does not exist"):
        prepare(config.updated(bundles=(missing,)))


def test_impossible_settings_are_refused_together(config: EvaluationConfig) -> None:
    with pytest.raises(UsageError, match="4 problems"):
        config.updated(bundles=(), batch_size=0, limit=0, confidence=1.0)


def test_bundles_are_named_by_the_user_or_by_their_directory(tmp_path: Path) -> None:
    strange = tmp_path / "a=b"
    strange.mkdir()
    (loop := tmp_path / "loop").symlink_to(loop)
    texts = ["runs/x2", "tuned=runs/a", "tuned=runs/b", str(strange), str(loop)]
    choices = BundleChoice.parse_all(texts)
    assert [choice.label for choice in choices] == ["x2", "tuned", "tuned", "a=b", "loop"]
    with pytest.raises(UsageError, match="'x2' names 2 bundles; write NAME=PATH"):
        BundleChoice.parse_all(["one/x2", "two/x2"])


def test_max_tokens_is_1_5_times_the_longest_reference(
    config: EvaluationConfig, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "ab", "completion": text} for text in ("a", "b" * 19)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = prepare(config.updated(data=DataConfig(path=path), max_tokens=None)).bundles[0]
    (prompt,) = prepared.prompts
    assert prepared.max_tokens == ceil(1.5 * (prompt.longest_reference + 1))
    assert prompt.longest_reference > prompt.reference_tokens


def test_limited_positions_shorten_the_output_not_the_data(config: EvaluationConfig) -> None:
    prepared = prepare(config.updated(max_tokens=1000)).bundles[0]
    rooms: Iterator[int] = map(prepared.room, prepared.prompts)
    assert list(rooms) == [64 - len(prompt.token_ids) for prompt in prepared.prompts]
