"""A tuning's plan has the horizon and the depth share, or reports all problems together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.plan import depth_share, plan_tuning
from skipdec.engines.errors import CheckpointError, ConfigurationError, SkipDecError, UsageError
from skipdec.runtime.schedule.text import parse_schedule

Settings = Callable[..., TuneConfig]

MEDIAN = 4  # "abc" and the end token
LONG = {"prompt": "b c " * 18, "completion": "abc" * 5}  # the model has 64 positions


def write(path: Path, *rows: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> Settings:
    """Return ``settings(**changes)``: a model of 6 layers, one token per byte, three rows."""

    def make(**changes: Any) -> TuneConfig:  # noqa: ANN401
        rows = [{"prompt": "a", "completion": "abc"}] * 3
        values = {
            "model": str(model),
            "data": {"path": write(tmp_path / "rows.jsonl", *rows)},
            "schedule": "2x",
            "output": tmp_path / "tuned",
        }
        return TuneConfig(**{**values, **changes})

    return make


@pytest.mark.parametrize(
    ("schedule", "horizon", "is_median"),
    [
        ("2x", MEDIAN, True),
        ("step:max=4,min=2,steps=2", MEDIAN, True),
        ("2x:horizon=9", 9, False),
        (f"2x:horizon={MEDIAN}", MEDIAN, False),
        ("table:table=5/4/3", 3, False),
        ("d3:max=6,min=2,alpha=0.5", 3, False),
        ("constant:max=3", 1, False),
        ("full", 1, False),
        ("schedule.json", 7, False),
    ],
)
def test_the_horizon_defaults_to_the_median_completion(
    schedule: str,
    horizon: int,
    is_median: bool,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    document = parse_schedule("2x", num_layers=6, horizon=7).to_document()
    (tmp_path / "schedule.json").write_text(json.dumps(document))
    plan = plan_tuning(settings(schedule=schedule))
    assert (plan.schedule.horizon, plan.horizon_is_median) == (horizon, is_median)


@pytest.mark.parametrize("prompt", ["full", "decay"])
def test_the_share_of_full_depth_counts_every_position(prompt: str) -> None:
    schedule = parse_schedule(f"linear:max=7,min=3,prompt={prompt}", num_layers=12, horizon=5)
    lengths = [(1, 1), (3, 2), (9, 8), (9, 8)]
    examples = [TokenisedExample((5,) * first, (6,) * then, "") for first, then in lengths]
    run = sum(
        sum(schedule.prompt_budget(index, first) for index in range(first))
        + sum(schedule.budget(index) for index in range(then - 1))
        for first, then in lengths
    )
    full = 12 * sum(first + then - 1 for first, then in lengths)
    assert depth_share(schedule, examples) == run / full


def test_held_out_rows_are_read_by_their_own_options_and_counted(
    settings: Settings, tmp_path: Path
) -> None:
    rows = ({"prompt": "a", "completion": "c" * 80}, {"prompt": "b", "completion": "c"}, LONG)
    held_out = write(tmp_path / "dev.jsonl", *rows)

    def warnings(long_prompts: str) -> tuple[str, ...]:
        template = {"prompt_template": "{prompt}!!"}
        options = {"path": held_out, "long_prompts": long_prompts, **template}
        return plan_tuning(settings(validation=options)).warnings

    dropped = warnings("drop")
    assert dropped[0] == "held out: left out, too long: 2 of 3 rows"
    cut = warnings("cut")
    assert cut[0] == "held out: cut, too long: 1 of 3 prompts"
    assert cut[1].startswith("held out: cut off at the maximum length: 1 of 3 completions;")


@pytest.mark.parametrize("schedule", ["9x", "step:max=4,min=2,steps=9"])
def test_schedules_are_checked_even_if_the_data_is_bad(
    schedule: str, settings: Settings, tmp_path: Path
) -> None:
    """Schedules that depend on the horizon are refused once it is known."""
    bad = write(tmp_path / "bad.jsonl", {"prompt": "a", "completion": ""})
    with pytest.raises(UsageError) as caught:
        plan_tuning(
            settings(
                data={"path": bad},
                validation={"path": tmp_path / "none.jsonl"},
                schedule=schedule,
                mixture=("8x",),
            )
        )
    text = str(caught.value)
    for expected in ("bad.jsonl, line 1", "none.jsonl", "preset 8x: does not fit 6 layers"):
        assert expected in text
    assert ("preset 9x: does not fit 6 layers" in text) == (schedule == "9x")
    assert "steps" not in text


def test_held_out_rows_are_checked_even_if_the_data_is_bad(
    settings: Settings, tmp_path: Path
) -> None:
    bad = write(tmp_path / "bad.jsonl", {"prompt": "a", "completion": ""})
    held_out = write(tmp_path / "dev.jsonl", {**LONG, "prompt": "b" * 70})
    options = {"data": {"path": bad}, "validation": {"path": held_out}}
    with pytest.raises(UsageError, match=r"dev.jsonl, line 1: the prompt has 7\d tokens"):
        plan_tuning(settings(**options))
    fresh = {"model": None, "from_scratch": "layers=6,width=32,heads=2,positions=64"}
    with pytest.raises(UsageError, match=r"bad.jsonl, line 1") as caught:
        plan_tuning(settings(**options, **fresh))
    assert "dev.jsonl" not in str(caught.value)


@pytest.mark.parametrize(
    ("length", "problem"),
    [
        (99, "is 99; allowed: at most the model's 64"),
        (9999, "max_seq_len is 9999; allowed: 1 to 64, the model's max_position_embeddings"),
    ],
)
def test_a_length_beyond_the_model_is_one_problem(
    length: int, problem: str, settings: Settings, tmp_path: Path
) -> None:
    held_out = write(tmp_path / "dev.jsonl", {"prompt": "a", "completion": "b"})
    with pytest.raises(SkipDecError) as caught:
        plan_tuning(settings(max_length=length, validation={"path": held_out}))
    assert caught.value.problems == (problem,)


def test_texts_may_exceed_a_bundles_default_length(settings: Settings) -> None:
    sizes = "family=llama,layers=6,width=32,heads=2,positions=16384"
    chosen = settings(model=None, from_scratch=sizes, vocab_size=300, max_length=10000)
    assert plan_tuning(chosen).model.max_seq_len == 10000


@pytest.mark.parametrize("field", ["epochs", "learning_rate", "weight_decay", "seed"])
def test_invalid_numbers_are_refused(field: str, settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match=field):
        settings(**{field: 2**32 if field == "seed" else math.inf})


@pytest.mark.parametrize("field", ["vocab_size", "batch_size", "lora"])
def test_sizes_beyond_any_model_are_refused(field: str, settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match=rf"{field} is 10+; allowed: \d+ or less"):
        settings(**{field: 10**23})


def test_an_adapter_next_to_merged_weights_is_refused(settings: Settings, model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"holds adapter_config\.json, .*; move the adapter's"
    ):
        plan_tuning(settings())
