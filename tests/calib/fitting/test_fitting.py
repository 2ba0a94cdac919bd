"""Compare a fit of a tiny bundle with the torch model and with every possible schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
from measured_speedups import measured_as
from recorded_events import RecordedEvents
from reference import linear_plan, reference_logits
from reports import as_json, shown
from text_bundles import STRUCTURE
from transformers import OPTForCausalLM

from skipdec.calib.data.data import DataConfig
from skipdec.calib.fitting.fitting import Fit, NearMiss, fit
from skipdec.calib.fitting.inputs import FitConfig, prepare
from skipdec.calib.fitting.report import fit_parts, report_document
from skipdec.calib.fitting.search import SearchConfig
from skipdec.calib.fitting.space import SpaceConfig
from skipdec.calib.fitting.speed import MeasuredSpeedup
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.runtime.generator import Generator
from skipdec.runtime.measuring.cost import CostModel
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

MEASURE = "skipdec.calib.fitting.fitting.measure_speedup"


@pytest.fixture(scope="module")
def config(bundle: Path, data: Path) -> FitConfig:
    """Vary only max and min exit layer of 6 layers: 15 schedules scored on all 4 rows."""
    return FitConfig(
        bundle=bundle,
        data=DataConfig(path=data),
        target_speedup=1.4,
        space=SpaceConfig(decays=("linear",), placements=("top",), warmups=(1,)),
        search=SearchConfig(budget=15),
        speedup_of="steps",
        seconds=0,
    )


@pytest.fixture(scope="module")
def found(config: FitConfig) -> Fit:
    return fit(config, Generator.open)


def exhaustive(fit: Fit) -> Iterator[tuple[ExitSchedule, float, float]]:
    """Return every schedule with its predicted speed-up and its loss."""
    inputs = fit.inputs
    cost = CostModel(fit.bundle.manifest)
    tokens = sum(len(example.completion_token_ids) for example in inputs.examples)
    with Generator.open(fit.bundle.path) as generator:
        for high in range(2, 7):
            for low in range(2, high + 1):
                text = f"linear:max={high},min={low},warmup=1,horizon={inputs.horizon}"
                schedule = parse_schedule(text, num_layers=6)
                scores = generator.score(
                    [example.prompt_token_ids for example in inputs.examples],
                    [example.completion_token_ids for example in inputs.examples],
                    schedule=schedule,
                )
                nats = -sum(score.cumulative_logprob for score in scores)
                speedup = cost.bytes_ratio(schedule, [len(inputs.prompt)], inputs.num_tokens)
                yield schedule, speedup, nats / tokens


def test_the_default_horizon_is_the_median_completion(found: Fit) -> None:
    lengths = sorted(
        len(text) + 1 for text in ("some text", "other", "a second reference", "a | third")
    )
    assert found.inputs.horizon == lengths[1]
    assert found.inputs.longest_completion == lengths[-1]


def test_a_single_example_has_no_error(config: FitConfig) -> None:
    text = shown(fit_parts(fit(config.updated(num_examples=1), Generator.open)))
    assert "+0.0000" in text
    assert "nan" not in text


def test_the_least_loss_among_fast_enough_schedules_is_chosen(found: Fit) -> None:
    fitting = [(loss, schedule) for schedule, speed, loss in exhaustive(found) if speed >= 1.4]
    loss, schedule = min(fitting, key=lambda entry: entry[0])
    assert found.chosen.loss == pytest.approx(loss)
    assert found.chosen.schedule.segments == schedule.segments
    assert found.search.is_exhaustive


def test_the_front_is_exactly_the_undominated_schedules(found: Fit) -> None:
    everything = [(speed, loss) for _, speed, loss in exhaustive(found)]
    for candidate in found.front:
        assert not any(
            speed > candidate.predicted.steps + 1e-9 and loss < candidate.loss - 1e-9
            for speed, loss in everything
        )
    for candidate in found.others:
        assert any(
            entry.predicted.steps >= candidate.predicted.steps and entry.loss <= candidate.loss
            for entry in found.front
        )


def test_the_loss_equals_the_torch_models_at_the_same_depth(
    found: Fit, reference_model: Callable[[str], OPTForCausalLM]
) -> None:
    candidate = next(entry for entry in found.front if entry.schedule.decay == "linear")
    schedule = candidate.schedule
    plan = linear_plan(6, schedule.max_exit_layer, schedule.min_exit_layer, 1, schedule.horizon)
    nats: list[float] = []
    for example in found.inputs.examples:
        target = list(example.completion_token_ids)
        logits = reference_logits(
            reference_model(STRUCTURE), example.prompt_token_ids, target[:-1], plan
        )
        nats += (-logits.log_softmax(-1)[range(len(target)), target]).tolist()
    assert candidate.loss == pytest.approx(np.mean(nats), rel=1e-4)


def test_the_fastest_schedule_within_a_loss_is_chosen(config: FitConfig, found: Fit) -> None:
    bound = float(np.median([loss for _, _, loss in exhaustive(found)]))
    result = fit(config.updated(target_speedup=None, max_loss=str(bound)), Generator.open)
    fastest = max(speed for _, speed, loss in exhaustive(found) if loss <= bound)
    assert result.chosen.predicted.steps == pytest.approx(fastest)
    assert result.chosen.loss <= bound


def test_the_json_report_has_schedules_that_parse(found: Fit) -> None:
    document = as_json(report_document(found, {"threads": 1}))
    for entry, candidate in zip(document["front"], found.front, strict=True):
        assert parse_schedule(entry["schedule"], num_layers=6) == candidate.schedule
    assert document["config"]["target_speedup"] == 1.4


@pytest.mark.parametrize("width", [100, 80, 60])
def test_tables_keep_their_figures_and_report_a_disturbed_machine(found: Fit, width: int) -> None:
    chosen = found.chosen.schedule
    restless, calm = measured_as(chosen, 9.0, lost="load of 12"), measured_as(chosen, 9.0)
    missed = NearMiss(chosen, 1.297, 1.0)
    disturbed = replace(found, measured=restless, rejected=(restless, calm), near_miss=missed)
    text = shown(fit_parts(disturbed), width)
    for candidate in found.front:
        assert f"{candidate.loss:.4f}" in text
        assert f"{candidate.expected.steps:.3f}×" in text
    assert "measured disturbed (whole call disturbed)" in text
    assert "…" not in text
    assert text.count("load of 12") == 1
    assert "rejected, disturbed: " in text
    assert "rejected, measured at 9.000×: " in text
    assert "just below the target, 1.297× at a loss of 1.0000: " in text


def measured(*steps: float) -> Callable[..., MeasuredSpeedup]:
    """Make timings yield ``steps``, one after another."""
    left = list(steps)

    def measure(
        generator: Generator,
        prompt: Sequence[int],
        schedule: ExitSchedule,
        *,
        num_tokens: int,
        seconds: float,
        cost: CostModel,
    ) -> MeasuredSpeedup:
        return measured_as(schedule, left.pop(0), 1.2)

    return measure


def test_the_measured_speedup_decides(config: FitConfig) -> None:
    timed = config.updated(seconds=1)
    with patch(MEASURE, measured(2.0, 1.3, 1.5)):
        result = fit(timed, Generator.open)
    assert result.measured is not None
    assert result.measured.steps.value == 1.5
    assert [entry.steps.value for entry in result.rejected] == [1.3]
    assert result.measured.schedule == result.chosen.schedule
    assert result.chosen.expected.steps > 1.4


def test_a_target_beyond_the_fastest_is_refused_before_anything_is_scored(
    config: FitConfig,
) -> None:
    events = RecordedEvents()
    with (
        patch(MEASURE, measured(1.35)),
        pytest.raises(SkipDecError, match=r"constant:max=2,min=2.*and 1\.350× as measured"),
    ):
        fit(config.updated(seconds=1), Generator.open, events)
    assert "searching" not in events.counts


def test_a_target_beyond_bytes_is_refused_without_timing(config: FitConfig) -> None:
    changed = config.updated(seconds=1, target_speedup=2.99)
    with (
        patch(MEASURE, side_effect=AssertionError("timed")),
        pytest.raises(
            SkipDecError, match=r"speedup 2\.99 .* at most 2\.\d+× by the bytes it reads;"
        ),
    ):
        fit(changed, Generator.open)


def test_a_target_beyond_layers_is_refused_before_engines_load(config: FitConfig) -> None:
    never_opened = Mock(spec=Generator.open)
    with pytest.raises(SkipDecError, match="runs 2 of 6 layers, so it gains 3× at most") as error:
        fit(config.updated(target_speedup=50), never_opened)
    assert error.value.exit_code == 1
    never_opened.assert_not_called()


def test_a_target_within_reach_is_met_by_the_smallest_search(
    config: FitConfig,
) -> None:
    """Test the better of two one-layer schedules; a search of one schedule scores only one."""
    space = SpaceConfig()
    cost = CostModel(EngineBundle.open(config.bundle).manifest)
    inputs = prepare(config.updated(space=space))
    fastest = inputs.space.fastest()
    reached = cost.bytes_ratio(fastest[0], [len(inputs.prompt)], inputs.num_tokens)
    changed = config.updated(
        space=space,
        target_speedup=reached - 0.001,
        search=SearchConfig(budget=1),
    )
    result = fit(changed, Generator.open)
    assert not result.search.is_exhaustive
    assert result.chosen.schedule in fastest
    scored = {entry.schedule: entry.loss for entry in (*result.front, *result.others)}
    assert result.chosen.loss == min(scored[schedule] for schedule in fastest)


def test_a_prompt_that_fills_the_model_is_timed_with_room_for_steps(
    config: FitConfig, tmp_path: Path
) -> None:
    path = tmp_path / "full.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 62, "completion": "y"}) + "\n")
    loss = {"target_speedup": None, "max_loss": "100"}
    timed = config.updated(data=DataConfig(path=path), seconds=0.01, **loss)
    inputs = prepare(timed)
    assert len(inputs.examples[0].prompt_token_ids) == 63
    assert (len(inputs.prompt), inputs.num_tokens) == (62, 2)
    result = fit(timed, Generator.open)
    assert result.measured is not None
    assert result.measured.turns >= 3


def test_a_fit_for_calls_chooses_by_calls(config: FitConfig) -> None:
    changed = config.updated(
        seconds=0.01,
        speedup_of="call",
        target_speedup=1.3,
        space=config.space.updated(prompts=("full", "decay")),
        search=SearchConfig(budget=30),
    )
    with patch(MEASURE, measured(2.5, 9.0)):
        result = fit(changed, Generator.open)
    assert result.speed.prompt_share == 0.5
    prompts = {entry.schedule.prompt for entry in (*result.front, *result.others)}
    assert prompts == {"full", "decay"}
    assert result.chosen.expected.call is not None
    assert result.chosen.expected.call >= 1.3


def test_bad_rows_and_choices_are_refused_before_engines_load(
    config: FitConfig, tmp_path: Path
) -> None:
    never_opened = Mock(spec=Generator.open)
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 63, "completion": "y"}) + "\n")
    incomplete = SpaceConfig(decays=("power",))
    for changes, message in (
        ({"data": DataConfig(path=path)}, "long.jsonl, line 1: the prompt has"),
        ({"space": incomplete}, "power is missing"),
        (
            {"target_speedup": None, "max_loss": "+inf"},
            "max_loss is inf; allowed: a finite number, 0 or more",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            fit(config.updated(**changes), never_opened)  # type: ignore[arg-type]
    never_opened.assert_not_called()


def test_a_bundle_without_tokenizer_is_refused(config: FitConfig) -> None:
    bundle = EngineBundle.open(config.bundle)
    untold = bundle.manifest.model_copy(update={"tokenizer": None})
    with (
        patch(
            "skipdec.calib.fitting.inputs.EngineBundle.open",
            return_value=replace(bundle, manifest=untold),
        ),
        pytest.raises(UsageError, match="has no tokenizer"),
    ):
        prepare(config)


def test_examples_are_drawn_by_seed(config: FitConfig) -> None:
    def drawn(seed: int) -> list[str]:
        chosen = config.updated(num_examples=3, search=SearchConfig(seed=seed))
        return [example.source for example in prepare(chosen).examples]

    assert drawn(0) == drawn(0)
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1
    assert len(drawn(0)) == 3
