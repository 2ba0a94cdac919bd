"""A table of tiny models is made once, reread, and invalidated by other options."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from pathlib import Path

import pytest
from recorded_events import RecordedEvents
from reproduction.config import ReproductionConfig
from reproduction.evaluation import CellResult
from reproduction.reproduction import reproduce
from reproduction.runs import Cell
from reproduction.table import DOCUMENT, REPORT, Table, write_results

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import ConfigurationError, UsageError
from skipdec.runtime.generator import Generator

ANIMALS = ("Ant", "Bee", "Cat", "Dog", "Eel", "Fox", "Gnu", "Hen")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ReproductionConfig:
    directory = tmp_path_factory.mktemp("table")
    path = directory / "rows.csv"
    with path.open("w", newline="") as file:
        rows = [(f"name[{name}]", f"{name} is a small pub.") for name in ANIMALS]
        csv.writer(file).writerows([("mr", "ref"), *rows])
    return ReproductionConfig(
        train=path,
        dev=path,
        work=directory / "work",
        sizes="layers=6,width=16,heads=2,positions=64",
        vocab_size=300,
        max_length=60,
        seeds=(0,),
        speedups=(3,),
        columns=("skipdecode", "unified"),
        mixture=True,
        tuning_steps=1,
        batch_size=4,
        resamples=20,
        bf16=False,
    )


class InThisProcess(Executor):
    """Replaces the processes of `reproduce`, each of which would import torch twice."""

    def submit(self, run: Callable[..., object], /, *args: object, **options: object) -> Future:
        done: Future[object] = Future()
        done.set_result(run(*args, **options))
        return done


@pytest.fixture(scope="module")
def results(config: ReproductionConfig, verified_here: None) -> list[CellResult]:
    with pytest.MonkeyPatch.context() as patch:
        name = "reproduction.reproduction._processes"
        patch.setattr(name, lambda _: nullcontext(InThisProcess()))
        return reproduce(config, Generator.open)


@pytest.mark.slow
def test_every_cell_of_the_table_is_filled(results: list[CellResult]) -> None:
    assert [(result.column, result.speedup) for result in results] == [
        ("untuned", 1),
        ("untuned", 3),
        ("full", 1),
        ("skipdecode", 1),
        ("unified", 1),
        ("mixture", 1),
        ("mixture", 3),
        ("skipdecode", 3),
        ("unified", 3),
    ]
    depths = {result.cell: result.figures["realised_depth"] for result in results}
    assert depths[Cell("untuned", 1)] == depths[Cell("full", 1)] == 6
    assert {depths[Cell(name, 3)] for name in ("untuned", "skipdecode", "unified", "mixture")} == {
        2
    }


def test_a_second_call_reuses_all_results(
    config: ReproductionConfig, results: list[CellResult]
) -> None:
    events = RecordedEvents()

    again = reproduce(config, Generator.open, events)

    assert events.totals["tuning bases"] == events.totals["tuning"] == 0
    assert again == results  # times are reread, not measured again
    assert events.done["evaluating"] == ["base", "control", "mixture-3", "skipdecode-3x"]


@pytest.mark.slow
def test_a_table_may_start_from_a_pretrained_model(
    config: ReproductionConfig, results: list[CellResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "reproduction.reproduction._processes"
    monkeypatch.setattr(name, lambda _: nullcontext(InThisProcess()))
    changes = {
        "model": config.work / "seed-0" / "base",
        "work": config.work.with_name("pretrained"),
        "prompt_template": "{prompt}\n",
        "columns": ("skipdecode",),
        "mixture": False,
        "distill": 0.5,
        "dtype": "float16",
    }
    pretrained = ReproductionConfig(**{**config.model_dump(), **changes})

    cells = reproduce(pretrained, Generator.open)

    assert len(cells) == 5
    bundle = EngineBundle.open(pretrained.work / "seed-0" / "skipdecode-3x.bundle")
    assert bundle.manifest.precision.dtype == "float16"
    assert bundle.manifest.prompt_template == "{prompt}\n"


def test_models_tuned_with_other_options_are_refused(
    config: ReproductionConfig, results: list[CellResult]
) -> None:
    changed = config.model_copy(update={"tuning_steps": 2})

    with pytest.raises(UsageError, match="was made with max_steps 1, now it is 2"):
        reproduce(changed, Generator.open)


def test_models_of_other_data_or_a_deleted_base_are_refused(
    config: ReproductionConfig, results: list[CellResult], tmp_path: Path
) -> None:
    other = tmp_path / "rows.csv"
    other.write_text(config.train.read_text().replace("pub", "inn"))
    with pytest.raises(UsageError, match="`train` had other content when the models in"):
        reproduce(config.model_copy(update={"train": other}), Generator.open)
    copy = shutil.copytree(config.work, tmp_path / "work")
    shutil.rmtree(copy / "seed-0" / "base")
    with pytest.raises(UsageError, match="has models whose base is gone; delete them"):
        reproduce(config.model_copy(update={"work": copy}), Generator.open)


def test_speedups_that_run_the_same_layers_are_refused(config: ReproductionConfig) -> None:
    fields = config.model_dump() | {"sizes": "layers=11,width=16,heads=2", "speedups": (5, 6)}
    with pytest.raises(ConfigurationError, match="6x runs the layers of 5x, of 11; leave one"):
        ReproductionConfig(**fields)


def test_differences_are_paired_with_full_depth_tuned_equally_long(
    config: ReproductionConfig, results: list[CellResult]
) -> None:
    table = Table(config, results)

    itself = table.difference(Cell("unified", 1), "bleu")
    other = table.difference(Cell("untuned", 1), "rouge_l")

    assert (itself.value, itself.low, itself.high) == (0, 0, 0)
    figures = {result.cell: result.figures["rouge_l"] for result in results}
    assert other.value == figures[Cell("untuned", 1)] - figures[Cell("full", 1)]


def test_seeds_keep_the_order_in_which_they_were_given(
    config: ReproductionConfig, results: list[CellResult]
) -> None:
    both = [one.model_copy(update={"seed": seed}) for seed in (4, 7) for one in results]
    table = Table(config.model_copy(update={"seeds": (7, 4)}), both)
    assert [one.seed for one in table.of(Cell("unified", 1))] == [7, 4]


def test_a_disturbed_time_survives_json_as_nan(results: list[CellResult]) -> None:
    disturbed = results[0].model_copy(update={"measured_speedup": math.nan})
    read = CellResult.model_validate(json.loads(disturbed.model_dump_json()))
    assert math.isnan(read.measured_speedup)


def test_tables_and_document_are_written_to_the_work_directory(
    config: ReproductionConfig, results: list[CellResult]
) -> None:
    tables = write_results(config, results)

    assert (config.work / REPORT).read_text() == tables
    assert tables.count("| 3× |") == 8
    document = json.loads((config.work / DOCUMENT).read_text())
    assert len(document["cells"]) == len(results)
    assert ReproductionConfig(**document["config"]) == config
