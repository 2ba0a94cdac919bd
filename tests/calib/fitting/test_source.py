"""Fit a checkpoint, exported temporarily, and check what remains."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import run
from recorded_events import RecordedEvents

from skipdec.calib.data.data import DataConfig
from skipdec.calib.fitting.fitting import Fit, fit
from skipdec.calib.fitting.inputs import FitConfig, MaxLoss
from skipdec.calib.fitting.source import BundleSource, ModelSource
from skipdec.calib.fitting.space import SpaceConfig
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import CapacityError, MissingExtraError, SkipDecError, UsageError
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.generator import Generator
from skipdec.runtime.opening import OpenOptions
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

ONLY_EXITS = ["--placement", "top", "--decay", "linear", "--warmup", "1", "--budget", "8"]
QUICK = [*ONLY_EXITS, "--speedup-of", "steps", "--seconds", "0", "--threads", "1"]


@pytest.fixture(scope="module")
def model(bundle: Path) -> Path:
    """Return the checkpoint of ``bundle``, with its tokenizer."""
    return bundle.parent / "checkpoint"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the parent directory of the temporary bundle."""
    (tmp_path / "beside").mkdir()
    return tmp_path / "beside"


@pytest.fixture
def config(model: Path, data: Path, directory: Path) -> FitConfig:
    return FitConfig(
        source=ModelSource(ExportConfig(model=str(model), quantize="int8"), directory),
        data=DataConfig(path=data),
        goal=MaxLoss(100, False),
        space=SpaceConfig(decays=("linear",), placements=("top",), warmups=(1,)),
        speedup_of="steps",
        seconds=0,
    )


def losses(found: Fit) -> dict[ExitSchedule, float]:
    return {entry.schedule: entry.loss for entry in (*found.front, *found.others)}


def test_losses_are_those_of_the_bundle_at_the_precision_asked_for(
    config: FitConfig, model: Path, directory: Path, tmp_path: Path
) -> None:
    events = RecordedEvents()
    found = fit(config, Generator.open, events)
    assert not list(directory.iterdir()), "the temporary bundle is gone"
    assert "exporting" in events.lines[0]
    quantised = tmp_path / "int8"
    export(ExportConfig(model=str(model), quantize="int8", output=quantised, verify=False))
    ready = fit(config.updated(source=BundleSource(quantised)), Generator.open)
    assert losses(found) == pytest.approx(losses(ready))
    assert found.bundle.manifest.digest == ready.bundle.manifest.digest
    assert found.inputs == replace(ready.inputs, space=found.inputs.space)


@pytest.mark.parametrize("mishap", [KeyboardInterrupt(), SkipDecError("engine", "broke")])
def test_nothing_remains_after_errors_and_interruptions(
    config: FitConfig, directory: Path, mishap: BaseException
) -> None:
    def opened(path: Path) -> Generator:
        assert EngineBundle.open(path).manifest.precision.quantize == "int8"
        raise mishap

    with pytest.raises(type(mishap)):
        fit(config, opened)
    assert not list(directory.iterdir())


def test_an_interrupted_export_leaves_nothing(config: FitConfig, directory: Path) -> None:
    def interrupted(config: ExportConfig, events: object) -> None:
        assert config.output is not None
        config.output.mkdir()
        raise KeyboardInterrupt

    with (
        patch("skipdec.exporter.pipeline.exporting.export", interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        fit(config, Generator.open)
    assert not list(directory.iterdir())


def full_disk(path: object) -> object:
    return namedtuple("Usage", ["total", "used", "free"])(1 << 30, (1 << 30) - 1000, 1000)


@pytest.mark.parametrize(
    ("patched", "value", "error", "message"),
    [
        ("skipdec.exporter.pipeline.plan.shutil.disk_usage", full_disk, CapacityError, "are free"),
        (
            "skipdec.engines.host.installation.missing_modules",
            lambda extra: ("torch",),
            MissingExtraError,
            r"needs torch.*pip install .*\[export\]'",
        ),
    ],
)
def test_missing_export_requirements_are_reported_before_work(
    config: FitConfig, patched: str, value: Callable[..., object], error: type, message: str
) -> None:
    with (
        patch(patched, value),
        patch("skipdec.exporter.pipeline.exporting.export") as never,
        pytest.raises(error, match=message),
    ):
        fit(config, Generator.open)
    never.assert_not_called()


def test_bad_rows_and_a_taken_place_are_named_together(config: FitConfig, tmp_path: Path) -> None:
    rows, taken = tmp_path / "rows.jsonl", tmp_path / "taken"
    rows.write_text(json.dumps({"prompt": "a"}) + "\n")
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    assert isinstance(config.source, ModelSource)
    keeping = config.source.config.model_copy(update={"output": taken, "force": True})
    source = ModelSource(keeping, tmp_path)
    with pytest.raises(UsageError, match=r"2 problems:\n.*line 1.*\n.*is not a bundle"):
        fit(config.updated(data=DataConfig(path=rows), source=source), Generator.open)


def open_alone(path: Path, options: OpenOptions, **others: object) -> Generator:
    """Open a bundle as commands do, but without a thread pool that outlives it."""
    return Generator.open(path)


@pytest.mark.usefixtures("verified_here")
def test_the_schedule_and_the_kept_bundle_are_what_export_makes(
    model: Path, data: Path, tmp_path: Path
) -> None:
    schedule, kept, made = tmp_path / "schedule.json", tmp_path / "kept", tmp_path / "made"
    command = ["fit", model, "--quantize", "int8", "--data", data, "--target-speedup", "1.1"]
    command += [*QUICK, "-o", schedule, "--keep-bundle", kept, "--json"]
    with patch.object(Generator, "open_with_shared_pool", staticmethod(open_alone)):
        result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert "exporting" in result.stderr
    document = json.loads(result.stdout)
    assert document["precision"]["quantize"] == "int8"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "schedule.json"]
    config = ExportConfig(
        model=str(model), quantize="int8", schedule=str(schedule), output=made, verify=False
    )
    export(config)
    bundles = [EngineBundle.open(path) for path in (kept, made)]
    assert len({bundle.manifest.digest for bundle in bundles}) == 1
    chosen = parse_schedule(str(schedule), num_layers=6).to_document()
    assert [bundle.schedule_document for bundle in bundles] == [chosen, chosen]
    assert document["chosen"]["schedule"] == chosen


def test_options_that_do_not_go_together_are_refused(
    model: Path, bundle: Path, data: Path, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    goal = ["--data", data, "--target-speedup", "2"]
    for arguments, code, message in (
        ([bundle, "--fp16", "--quantize", "int8"], 2, "leave out --fp16, --quantize"),
        ([bundle, "--keep-bundle", tmp_path / "kept"], 2, "leave out --keep-bundle"),
        ([model, "--fp16", "--dtype", "float32"], 2, "--fp16 | contradicts --dtype float32"),
        ([model, "--load-format", "bin"], 1, "has none of pytorch_model.bin"),
        ([nothing], 1, "is not a bundle"),
        (["./none.skipdec"], 1, "is not a bundle here; as a model, it is not a directory"),
        ([model, "--seconds", "0"], 2, "must be timed; set it to more, e.g. 20, or"),
    ):
        result = run("fit", *arguments, *goal)
        assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["nothing"]


def test_a_kept_bundle_replaces_another_only_by_force(
    config: FitConfig, bundle: Path, tmp_path: Path
) -> None:
    old = shutil.copytree(bundle, tmp_path / "old")
    assert isinstance(config.source, ModelSource)
    for force in (False, True):
        keeping = config.source.config.model_copy(update={"output": old, "force": force})
        source = ModelSource(keeping, tmp_path)
        built = shutil.copytree(bundle, tmp_path / f"built-{force}")
        schedule = ExitSchedule.full(6)
        if force:
            assert source.publish(built, schedule) == old
        else:
            with pytest.raises(UsageError, match="pass --force"):
                source.publish(built, schedule)
    assert EngineBundle.open(old).schedule_document == ExitSchedule.full(6).to_document()
    assert not (tmp_path / "built-True").exists()
