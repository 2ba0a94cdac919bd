"""Tune a tiny model end to end: the model learns, resumes and exports."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import config as options_file
from command_line import run
from huggingface_hub import ModelCard
from interruptions import Signal, interrupt
from matplotlib.figure import Figure
from recorded_events import RecordedEvents
from safetensors.torch import load_file
from transformers import OPTForCausalLM

from skipdec.calib.data.data import DataConfig, load_examples
from skipdec.calib.evaluation.config import EvaluationConfig
from skipdec.calib.evaluation.inputs import prepare as prepare_evaluation
from skipdec.calib.layerwise.plan import tokenise_rows
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.report import TuningReport, plot_curves
from skipdec.calib.tuning.tuning import tune as tune_or_none
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import MissingExtraError, UsageError
from skipdec.engines.host.signals import SIGNALS, Interrupts
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.generator import Generator
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.tokenizer import Tokenizer

Settings = Callable[..., TuneConfig]

NAMES = ("Ant", "Bee", "Cat", "Dog", "Eel", "Fox", "Gnu", "Hen")
SCHEDULE = "linear:max=3,min=2,warmup=1"
FRESH = {"model": None, "from_scratch": "layers=4,width=32,heads=2,positions=48", "vocab_size": 300}


def tune(config: TuneConfig, events: RecordedEvents | None = None) -> TuningReport:
    """Tune in this process as the main one."""
    report = tune_or_none(config, events)
    assert report is not None
    return report


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = (
        {"prompt": f"name[{name}]", "completion": f"{name} is a pub" + "." * index}
        for index, name in enumerate(NAMES)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def settings(rows: Path, tmp_path: Path) -> Settings:
    """Return ``settings(name, **changes)``: 12 steps of a new 4-layer model, to tmp_path/name."""

    def make(name: str = "tuned", **changes: Any) -> TuneConfig:  # noqa: ANN401
        values: dict[str, Any] = {
            "data": {"path": rows},
            "schedule": SCHEDULE,
            "output": tmp_path / name,
            "max_steps": 12,
            "batch_size": 4,
            "learning_rate": 5e-3,
            "logging_steps": 3,
            "device": "cpu",
        }
        start = {} if "model" in changes else FRESH
        return TuneConfig(**{**start, **values, **changes})

    return make


@pytest.fixture(scope="session")
def small(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a 4-layer checkpoint trained on the data at full depth."""
    output = tmp_path_factory.mktemp("small") / "small"
    tune(
        TuneConfig(
            **FRESH,
            data={"path": rows},
            schedule="full",
            output=output,
            max_steps=40,
            batch_size=8,
            learning_rate=1e-2,
            device="cpu",
        )
    )
    return output


def weights(directory: Path) -> dict[str, torch.Tensor]:
    (path,) = directory.glob("*.safetensors")
    return load_file(path)


def assert_same_weights(first: Path, second: Path, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=tolerance)


def test_the_loss_falls_and_the_output_exports_with_its_schedule(
    small: Path, rows: Path, settings: Settings, tmp_path: Path, own_thread_pools: None
) -> None:
    data = {"path": rows, "prompt_template": "{prompt} ="}
    config = settings(model=str(small), max_steps=60, data=data, validation=rows, batch_size=8)
    report = tune(config)
    assert report.validation is not None
    assert report.validation.tuned_at_schedule < 0.7 * report.validation.start_at_schedule
    assert report.losses[0].loss > report.losses[-1].loss
    output = config.output
    assert json.loads((output / "tuning_report.json").read_text())["steps"] == 60
    assert (output / "tuning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((output / "config.json").read_text())["architectures"] == ["OPTForCausalLM"]
    assert not list(tmp_path.glob(".*"))
    assert len({path.stat().st_mode for path in output.iterdir()}) == 1, "equal permissions"

    bundle = tmp_path / "bundle"
    export(ExportConfig(model=str(output), output=bundle, verify=False))
    schedule = ExitSchedule.from_document(EngineBundle.open(bundle).schedule_document)
    assert schedule == parse_schedule(str(output / "schedule.json"), num_layers=4)
    params = SamplingParams(temperature=0, max_tokens=20)
    with Generator.open(bundle, threads=1) as generator:
        (result,) = generator.generate(["name[Cat]"], params)
        assert generator.tokenizer is not None
        in_template = tuple(generator.tokenizer.encode("name[Cat] ="))
        assert generator.prompt_template == "{prompt} ="
        assert generator.score(["name[Cat]"], ["."])[0].prompt_token_ids == in_template
    assert (result.prompt, result.prompt_token_ids) == ("name[Cat]", in_template)
    assert " is a pub" in result.outputs[0].text
    assert set(result.outputs[0].layers_per_token[1:]) == {3, 2}
    with Generator.open(bundle, threads=1, raw_prompts=True) as generator:
        (raw,) = generator.generate(["name[Cat] ="], params)
    assert raw.prompt_token_ids == in_template
    assert raw.outputs[0].token_ids == result.outputs[0].token_ids
    assert_the_template_is_carried_along(output, bundle, rows)
    card = ModelCard.load(output / "README.md")
    assert card.data.license is None, "the licence is left to the user"
    assert "# tuned, tuned to skip layers" in card.text
    assert "# small, tuned at full depth" in (small / "README.md").read_text()
    losses = (report.validation.start_at_full, report.validation.tuned_at_full)
    assert f"| at full depth | {losses[0]:.3f} | {losses[1]:.3f} |" in card.text
    assert all(fact in card.text for fact in (report.schedule_text, "`{prompt} =`", "`small`"))


def assert_the_template_is_carried_along(checkpoint: Path, bundle: Path, rows: Path) -> None:
    """Check that commands that read data apply the template once and report it."""
    template = "{prompt} ="
    data = DataConfig(path=rows)
    (encoded,) = prepare_evaluation(EvaluationConfig(bundles=(str(bundle),), data=data)).bundles
    wanted = Tokenizer.parse((bundle / "tokenizer.json").read_bytes(), "tokenizer.json").encode(
        "name[Ant] ="
    )
    assert list(encoded.prompts[0].token_ids) == wanted
    assert encoded.template.note is not None
    assert EngineBundle.open(bundle).manifest.prompt_template == template
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint)))
    examples = load_examples(data)
    tokenised = tokenise_rows(opened, examples, data)
    assert list(tokenised.examples[0].prompt_token_ids) == wanted
    given = data.updated(prompt_template=template)
    assert tokenise_rows(opened, load_examples(given), given).examples == tokenised.examples
    shown = run("inspect", bundle, "--show", "engines")
    assert f"put into {template!r}" in shown.output
    command = ["generate", str(bundle), "-p", "name[Ant]", "--max-tokens", "1"]
    assert f"put into {template!r}" in run(*command).stderr
    assert "put into" not in run(*command, *options_file(opening={"raw_prompts": True})).stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_the_finished_step_for_an_exact_resume(
    number: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"save_steps": 100, "max_steps": 5}
    undisturbed = tune(settings("undisturbed", **options))
    before = [signal.signal(each, signal.SIG_DFL) for each in SIGNALS]  # a job ignores SIGINT
    Interrupts().install()  # as every command does
    try:
        interrupt(settings("resumed", **options), Signal(number, 1), monkeypatch)
    finally:
        for each, handler in zip(SIGNALS, before, strict=True):
            signal.signal(each, handler)
    saves = settings("resumed").output.with_name(".resumed.tuning") / "checkpoints"
    assert [save.name for save in saves.iterdir()] == ["checkpoint-2"]
    events = RecordedEvents()
    resumed = tune(settings("resumed", **options, resume=True), events)
    assert events.counts["tuning"] == 5
    losses = {one.step: one.loss for one in resumed.losses}
    assert list(losses) == [1, 2, 3, 5], "no loss is missing"
    assert undisturbed.losses[1].loss == pytest.approx((losses[2] + losses[3]) / 2, rel=1e-4)
    assert_same_weights(settings("resumed").output, settings("undisturbed").output)


def test_resuming_without_a_save_begins_anew(settings: Settings) -> None:
    report = tune(settings("anew", max_steps=1, resume=True))
    assert "there is no save to resume, so the tuning begins anew" in report.warnings


def test_every_stage_reports_its_number_of_steps(settings: Settings) -> None:
    events = RecordedEvents()
    tune(settings("counted", max_steps=1, validation=settings().data), events)
    for stage in ("checking", "loading", "held-out loss", "tuning"):
        assert 0 < events.counts[stage] == events.totals[stage]


FRESH_WITH_DROPOUT = {"from_scratch": "layers=4,width=32,heads=2,positions=48,dropout=0.1"}


@pytest.mark.parametrize(
    ("options", "is_damaged"),
    [
        ({"mixture": ("2x",), **FRESH_WITH_DROPOUT}, False),
        ({}, True),
        ({"model": True, "lora": 2}, False),
        ({"model": True, "draft_layer": True, "schedule": None}, False),
    ],
    ids=["drawn schedules", "a damaged save", "adapters", "a draft layer"],
)
def test_a_resumed_run_ends_in_the_weights_of_an_undisturbed_one(
    options: dict[str, Any],
    is_damaged: bool,
    small: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted in the fourth of six epochs, a step after a save; one without its optimizer is
    no save.
    """
    start = {"model": str(small)} if "model" in options else {}
    options = {"save_steps": 3, **options, **start}
    tune(settings("undisturbed", **options))
    interrupt(settings("resumed", **options), 7, monkeypatch)
    assert not settings("resumed").output.exists()
    with pytest.raises(UsageError, match="pass --resume, or delete"):
        tune(settings("resumed", **options))
    with pytest.raises(UsageError, match=r"learning_rate is 0.1; the run began with 0.005"):
        tune(settings("resumed", **options, resume=True, learning_rate=0.1))
    if is_damaged:
        saves = settings("resumed").output.with_name(".resumed.tuning") / "checkpoints"
        (saves / "checkpoint-6" / "optimizer.pt").unlink()
    events = RecordedEvents()
    report = tune(settings("resumed", **options, resume=True), events)
    assert events.done["tuning"][0] == "resumed"
    assert len(events.done["tuning"]) == (10 if is_damaged else 7)
    assert events.counts["tuning"] == events.totals["tuning"] == report.steps == 12
    assert_same_weights(settings("resumed").output, settings("undisturbed").output)


def test_a_single_step_trains(settings: Settings) -> None:
    (entry,) = tune(settings(max_steps=1)).losses
    assert entry.learning_rate == 5e-3


def test_a_finished_unpublished_run_resumes_without_another_step(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed while writing its result; another step would change the weights."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    options = {"max_steps": 3, "decay": "constant", "logging_steps": 1}
    expected = tune(settings("undisturbed", **options))
    with monkeypatch.context() as patch:
        patch.setattr("skipdec.calib.tuning.subjects.share_weights", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(settings("resumed", **options))
    events = RecordedEvents()
    report = tune(settings("resumed", **options, resume=True), events)
    assert events.done["tuning"][0] == "resumed"
    assert events.counts["tuning"] == events.totals["tuning"]
    assert (report.steps, report.epochs) == (expected.steps, expected.epochs) == (3, 1.5)
    assert report.losses == expected.losses
    assert_same_weights(settings("resumed").output, settings("undisturbed").output)


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        ({"batch_size": 8}, {"batch_size": 2, "gradient_accumulation": 4}),
        ({}, {"gradient_checkpointing": True}),
    ],
    ids=["accumulated parts", "recomputed activations"],
)
def test_options_that_save_memory_change_no_weights(
    plain: dict[str, Any], other: dict[str, Any], settings: Settings
) -> None:
    """Every token has the same weight although accumulated parts differ in size."""
    tune(settings("plain", max_steps=3, **plain))
    tune(settings("other", max_steps=3, **other))
    assert_same_weights(settings("other").output, settings("plain").output, 2e-5)


def test_bfloat16_learns(settings: Settings) -> None:
    report = tune(settings(bf16=True, save_dtype="bfloat16"))
    assert report.losses[-1].loss < report.losses[0].loss
    assert {tensor.dtype for tensor in weights(report.output).values()} == {torch.bfloat16}


def test_adapters_are_merged_into_the_weights(small: Path, settings: Settings) -> None:
    options = {"model": str(small), "lora": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        report = tune(settings(**options))
    assert report.trained_parameters < report.parameters / 4
    before, after = weights(small), weights(report.output)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert all(name.endswith("weight") for name in changed)
    assert {name.split(".")[-2] for name in changed} == {
        "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2",
    }  # fmt: skip


def test_adapters_without_peft_name_the_pip_command(
    small: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.calib.tuning.plan.is_installed", lambda name: False)
    with pytest.raises(MissingExtraError, match="pip install peft"):
        tune(settings(model=str(small), lora=2))


def test_an_existing_output_is_only_replaced_by_force(settings: Settings, tmp_path: Path) -> None:
    tune(settings(max_steps=1))
    with pytest.raises(UsageError, match="pass --force"):
        tune(settings(max_steps=1))
    report = tune(settings(max_steps=2, force=True))
    assert json.loads((report.output / "tuning_report.json").read_text())["steps"] == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="is not a tuned checkpoint"):
        tune(settings("other", max_steps=1, force=True))


def test_all_problems_are_reported_before_work(
    rows: Path, small: Path, settings: Settings, tmp_path: Path
) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(rows.read_text() + json.dumps({"prompt": "ab" * 60, "completion": "x"}) + "\n")
    schedule = tmp_path / "schedule.json"
    schedule.write_text(json.dumps(ExitSchedule.full(6).to_document()))
    (tmp_path / "taken").write_text("")
    options = {"data": {"path": long}, "schedule": str(schedule), "mixture": ("9x",)}
    with pytest.raises(UsageError) as caught:
        tune(settings("taken", model=str(small), **options))
    for expected in (
        "exists and is not a tuned checkpoint",
        r"long.jsonl, line 9: the prompt has 122 tokens; allowed: at most 47",
        "is for 6 layers; the model has 4",
        "preset 9x: does not fit 4 layers",
    ):
        assert expected in str(caught.value)


def test_events_are_ordered_and_a_short_run_has_a_visible_curve(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = RecordedEvents()
    report = tune(settings(max_steps=2), events)
    stages = ["checking", "loading", "tuning", "writing"]
    assert list(events.counts) == stages
    assert events.counts["tuning"] == events.totals["tuning"] == 2
    assert fnmatch(events.lines[0], "step 1: loss ?.???")
    assert [entry.step for entry in report.losses] == [1, 2], "the first and the last"
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    plot_curves(report.model_copy(update={"losses": report.losses[:1]}), tmp_path / "curves.png")
    assert figures[0].axes[0].lines[0].get_marker() == "o", "one point needs a marker"


def test_the_initial_weights_equal_those_transformers_reads(small: Path) -> None:
    """The published weights equal transformers' own, tied head included."""
    model = OPTForCausalLM.from_pretrained(small)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
