from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from command_line import run
from fixture_types import Checkpoints, Exported

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import (
    CapacityError,
    CheckpointError,
    ScheduleError,
    SkipDecError,
    UnsupportedModelError,
)
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export, output_path, plan_export

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")
PRECISIONS: list[dict[str, object]] = [
    {},
    {"dtype": "float16"},
    {"quantize": "int8"},
    {"quantize": "int8-block", "block_size": 32},
    {"quantize": "int4", "block_size": 16, "head_quantize": "int8"},
]
OWN_PRECISIONS: list[dict[str, object]] = [
    {"dtype": "bfloat16", "quantize": "int8", "head_quantize": "none"},
    {"quantize": "int4", "block_size": 32, "head_quantize": "int8"},
    {"quantize": "int8", "head_quantize": "int8-block"},
]
CASES = [{"kernels": "onnxruntime", **options} for options in PRECISIONS] + [
    pytest.param({"kernels": "skipdec", **options}, marks=needs_kernels)
    for options in OWN_PRECISIONS
]


@pytest.fixture
def directory(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("pre_norm"), tmp_path / "tiny"))


@pytest.mark.parametrize("options", CASES)
def test_planned_sizes_equal_the_built_sizes(
    exported: Exported, checkpoint: Checkpoints, options: dict[str, object]
) -> None:
    manifest = EngineBundle.open(exported("post_norm", **options)).manifest
    config = ExportConfig(model=str(checkpoint("post_norm")), output=Path("unused"), **options)
    sizes = {record.path: record.size for record in manifest.files}
    for planned, built in zip(plan_export(config).engines, manifest.all_engines, strict=True):
        actual = sum(sizes[path] for path in (built.graph, *built.weights))
        assert actual <= planned.size <= actual + (1 << 16) + 4096


def test_planning_a_huge_model_is_quick_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = ExportConfig(
        model="opt-13b", load_format="dummy", quantize="int4", kernels="onnxruntime"
    )
    plan = plan_export(config)
    assert [plan.engines[0].name, plan.engines[-3].name] == ["embed", "layer_039"]
    assert plan.kv_bytes_per_token == 2 * 40 * 5120 * 4
    assert plan.estimated_seconds > 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"model": "opt-1.3b"}, "opt-1.3b.skipdec"),
        ({"model": "facebook/opt-1.3b", "dtype": "float16"}, "opt-1.3b-fp16.skipdec"),
        ({"model": "opt-1.3b", "quantize": "int8"}, "opt-1.3b-int8.skipdec"),
    ],
)
def test_the_output_is_named_after_model_and_precision(values: dict[str, str], name: str) -> None:
    assert output_path(ExportConfig(**values)).name == name


def test_a_loop_of_links_is_no_model(tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    with pytest.raises(CheckpointError, match=r"loop \| does not exist"):
        plan_export(ExportConfig(model=str(loop)))


def test_every_problem_is_listed_before_any_work(directory: Path, tmp_path: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "thesis.tex").touch()
    config = ExportConfig(model=str(directory), output=occupied, target="npu")
    with pytest.raises(SkipDecError) as caught:
        plan_export(config)
    text = str(caught.value)
    assert all(word in text for word in ("npu", "not a bundle", "model_type", "gpt2"))
    assert [path.name for path in occupied.iterdir()] == ["thesis.tex"]


def test_a_single_problem_keeps_its_own_type(directory: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="max_seq_len is 65; allowed: 1 to 64"):
        plan_export(ExportConfig(model=str(directory), max_seq_len=65))


def test_a_full_disk_stops_an_export_but_not_a_dry_run(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9, 1000))
    output = tmp_path / "bundle"
    with pytest.raises(CapacityError, match="are free on that disk"):
        export(ExportConfig(model=str(directory), output=output))
    assert not output.exists()
    arguments = ["export", str(directory), "-o", str(output), "--dry-run"]
    result = run(*arguments)
    assert result.exit_code == 0
    assert "6 layers" in result.stdout
    assert "lacking" in result.stdout
    assert "MB; 0.0 MB are free on that disk" in result.stdout
    assert not any(line.endswith(" ") for line in result.stdout.splitlines()), "no padding in pipes"


def test_free_space_is_measured_on_the_disk_a_link_leads_to(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "bundle")
    plan = plan_export(ExportConfig(model=str(directory), output=tmp_path / "link"))
    measured: list[Path] = []
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: measured.append(path) or usage(0, 0, 0))
    assert plan.shortage is not None
    assert measured == [tmp_path / "disk"]


@pytest.mark.parametrize("spec", ["linear:max=7,min=2,horizon=8", "9x:horizon=8", "nonsense"])
def test_a_schedule_must_fit_the_model(directory: Path, spec: str) -> None:
    with pytest.raises(ScheduleError):
        plan_export(ExportConfig(model=str(directory), schedule=spec))


def test_the_checkpoints_schedule_is_the_default(directory: Path) -> None:
    own = plan_export(ExportConfig(model=str(directory), schedule="2x:horizon=8")).schedule
    assert plan_export(ExportConfig(model=str(directory))).schedule.is_full
    (directory / "training_schedule.json").write_text(json.dumps(own.to_document()))
    assert plan_export(ExportConfig(model=str(directory))).schedule == own
    assert plan_export(ExportConfig(model=str(directory), schedule="full")).schedule.is_full
    preset = plan_export(ExportConfig(model=str(directory), schedule="2x")).schedule
    assert preset.horizon == own.horizon


@pytest.mark.parametrize(
    ("schedule", "early_exit", "warning"),
    [
        ("2x:horizon=8", False, "tune it first"),
        ("2x:horizon=8", True, "add placement=bottom"),
        ("linear:max=4,min=2,horizon=8,placement=bottom", True, ""),
        ("full", True, ""),
    ],
)
def test_early_exit_allows_schedules_of_the_lowest_layers(
    directory: Path, schedule: str, early_exit: bool, warning: str
) -> None:
    config = ExportConfig(model=str(directory), schedule=schedule, early_exit=early_exit)
    texts = " ".join(plan_export(config).warnings)
    assert ("its texts will be poor" in texts.replace("\n", " ")) == bool(warning)
    assert warning in texts


def test_a_checkpoints_schedule_of_another_depth_is_refused(directory: Path) -> None:
    own = plan_export(ExportConfig(model=str(directory), schedule="full")).schedule.to_document()
    deeper = {**own, "num_layers": 12, "max_exit_layer": 12, "min_exit_layer": 12}
    (directory / "schedule.json").write_text(json.dumps(deeper))
    with pytest.raises(ScheduleError, match="12 layers; the model has 6"):
        plan_export(ExportConfig(model=str(directory)))


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"dtype": "float16", "kernels": "onnxruntime"}, True),
        ({"dtype": "float16", "quantize": "int8"}, False),
        ({"quantize": "int8"}, False),
    ],
)
def test_float16_on_a_cpu_is_one_warning(
    directory: Path, options: dict[str, str], warned: bool
) -> None:
    warnings = plan_export(ExportConfig(model=str(directory), **options)).warnings
    assert sum("become float32 when loaded" in text for text in warnings) == warned


def test_a_head_size_that_the_attention_kernel_refuses_is_named_first(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_attention_heads": 8}))
    with pytest.raises(UnsupportedModelError, match="heads are 4 wide; allowed: multiples of 8"):
        plan_export(ExportConfig(model=str(directory)))
