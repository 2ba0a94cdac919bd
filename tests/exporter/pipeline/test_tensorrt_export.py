"""Test exports of real plans, built by TensorRT-RTX on the CPU: reports, resuming, refusals."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import pytest
from plan_requests import needs_tensorrt_rtx
from tensorrt_bundles import ENGINES, TARGET, TENSORRT, Watched, export_config, write_config
from typer.testing import Result

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import EngineBuildError
from skipdec.engines.manifest import Manifest
from skipdec.engines.trt.build import PlanReport, PlanRequest, build_plan
from skipdec.exporter.building import plan_compiler
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.pipeline.report import ExportReport

pytestmark = [
    needs_tensorrt_rtx,
    pytest.mark.usefixtures("verified_here", "plans_built_once"),
]

DUMMY = ("--load-format=dummy", "--dtype=float16", f"--target={TARGET}", "--gpu-arch=8.9")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("model") / "tiny")


run = partial(command_line.run, "export")


@pytest.fixture(scope="module")
def command(
    model: Path,
    verified_here: None,
    plans_built_once: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Result, Path]:
    """Return the command's result for a verified export with two KV buckets, and the bundle."""
    output = tmp_path_factory.mktemp("exported") / "bundle"
    options = {"kv_buckets": [32, 64], "workspace": "1GiB"}
    sizes = ("--max-batch-size", "4", *command_line.config(tensorrt=options))
    result = run(model, "-o", output, "--json", *DUMMY, *sizes)
    assert result.exit_code == 0, result.output
    return result, output


@pytest.fixture(scope="module")
def exported(command: tuple[Result, Path]) -> tuple[ExportReport, Manifest]:
    """Return the report and the manifest of the command's export."""
    result, output = command
    report = ExportReport.model_validate_json(result.stdout)
    return report, EngineBundle.open(output, verify="full").manifest


def without_builds(manifest: Manifest) -> dict[str, Any]:
    """Return all but the bytes of plans, which depend on the order of the builder's threads."""
    document = manifest.model_dump(mode="json", exclude={"digest"})
    document["files"] = [
        record if not record["path"].endswith(".plan") else record["path"]
        for record in document["files"]
    ]
    return document


@pytest.mark.slow
def test_layers_have_a_plan_per_bucket_and_other_engines_one_plan(
    exported: tuple[ExportReport, Manifest],
) -> None:
    _, manifest = exported
    assert [spec.name for spec in manifest.all_engines] == list(ENGINES)
    for spec in manifest.all_engines:
        capacities = (32, 64) if spec.layer_index is not None else ()
        plans = tuple(f"engines/{TARGET}/{spec.name}.t{capacity}.plan" for capacity in capacities)
        assert [(bucket.capacity, bucket.graph) for bucket in spec.buckets] == list(
            zip(capacities, plans, strict=True)
        )
        assert spec.weights == (plans or (f"engines/{TARGET}/{spec.name}.plan",))
        assert spec.graph == spec.weights[0]
    paths = {record.path for record in manifest.files}
    assert paths == {path for spec in manifest.all_engines for path in spec.weights} | {
        "tokenizer.json"
    }
    assert manifest.canonical == ()


def test_the_manifest_records_the_build_options(exported: tuple[ExportReport, Manifest]) -> None:
    report, manifest = exported
    build = manifest.build
    assert build is not None
    assert (build.compute_capability, build.driver, build.kv_buckets) == ("8.9", None, (32, 64))
    assert (build.max_batch_size, build.max_prompt_len, build.max_prefill_rows) == (4, 64, 4)
    assert build.version == report.engines[0].plans[0].version
    weights = 2 * (64 * 192 + 192 + 64 * 64 + 64 + 64 * 96 + 96 + 96 * 64 + 64)  # float16
    norms = 4 * 4 * 64  # float32
    assert manifest.layers[0].step_bytes == weights + norms


def test_the_report_lists_every_plan_and_what_was_not_run(
    exported: tuple[ExportReport, Manifest],
) -> None:
    report, _ = exported
    assert [len(engine.plans) for engine in report.engines] == [1, 2, 2, 1, 1]
    for plan in report.engines[1].plans:
        assert (plan.layer_counts["KV_CACHE_UPDATE"], plan.layer_counts["ATTENTION_INPUT"]) == (
            2,
            1,
        )
    assert report.verification is not None
    assert report.verification.tokens is not None
    assert {check.engine for check in report.verification.engines} == {
        f"canonical {name}" for name in ENGINES
    }
    assert "plans were built, not run" in report.verification.notes[0]
    assert ExportReport.model_validate_json(report.model_dump_json()) == report


def test_equal_input_gives_equal_bundles_except_for_plan_bytes(
    exported: tuple[ExportReport, Manifest], model: Path, tmp_path: Path
) -> None:
    _, manifest = exported
    sizes = {"kv_buckets": [32, 64], "max_batch_size": 4, "workspace": 1 << 30}
    export(export_config(model, tmp_path / "again", tensorrt=TENSORRT | sizes, jobs=2))
    again = EngineBundle.open(tmp_path / "again").manifest
    assert without_builds(again) == without_builds(manifest)


def test_the_command_reports_as_json_and_shows_each_engine(command: tuple[Result, Path]) -> None:
    result, _ = command
    report = json.loads(result.stdout)
    assert report["build"]["workspace"] == 1 << 30
    assert report["build"]["max_batch_size"] == 4
    assert all(name in result.stderr for name in ENGINES)


def test_an_interrupted_plan_leaves_no_partial_file_and_is_resumed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = plan_compiler.build_plan

    def build(request: PlanRequest, *arguments: Any) -> PlanReport:  # noqa: ANN401
        interrupted = request.engine == "layer_001.t64"  # its process writes a file
        return (build_plan if interrupted else remembered)(request, *arguments)

    monkeypatch.setattr(plan_compiler, "build_plan", build)
    config = export_config(model, tmp_path / "bundle")
    with pytest.raises(KeyboardInterrupt):
        export(config, Watched(interrupt_in="layer_001.t64"))
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == []
    partial = tmp_path / ".bundle.partial"
    plans = {path.name for path in (partial / "engines" / TARGET).iterdir()}
    assert plans == {"embed.plan", "layer_000.t64.plan"}
    assert {path.name for path in partial.iterdir()} == {"engines", "journal.jsonl"}
    events = Watched()
    export(config, events)
    assert events.resumed == {"embed", "layer_000"}
    assert {plan for plan, *_ in events.progress} == {"layer_001.t64", "head", "candidates"}
    assert not list((tmp_path / "bundle").glob("engines/canonical"))


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_failing_engine_is_named_and_finished_plans_are_kept(
    jobs: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = plan_compiler.build_plan

    def crash_on_a_layer(request: PlanRequest, *arguments: Any) -> PlanReport:  # noqa: ANN401
        if request.engine == "layer_001.t64":
            raise EngineBuildError(f"engine {request.engine}", "the builder crashed (SIGSEGV)")
        return build(request, *arguments)

    config = export_config(model, tmp_path / "bundle", jobs=jobs)
    monkeypatch.setattr(plan_compiler, "build_plan", crash_on_a_layer)
    with pytest.raises(EngineBuildError, match=r"layer_001\.t64"):
        export(config)
    monkeypatch.undo()
    events = Watched()
    export(config, events)
    assert "layer_001" not in events.resumed
    assert jobs > 1 or events.resumed == {"embed", "layer_000"}


def test_other_options_rebuild_plans_from_the_same_canonical_engines(
    model: Path, tmp_path: Path
) -> None:
    config = export_config(model, tmp_path / "bundle")
    with pytest.raises(KeyboardInterrupt):
        export(config, Watched(interrupt_in="layer_001.t64"))
    other = config.model_copy(
        update={"tensorrt": config.tensorrt_options.model_copy(update={"max_batch_size": 2})}
    )
    events = Watched()
    with pytest.raises(KeyboardInterrupt):
        export(other, Watched(interrupt_in="layer_000.t64"))
    export(config, events)
    assert "layer_000" in events.resumed
    assert "embed" not in events.resumed  # its file now holds the other plan


def test_bfloat16_bundles_compare_weights_and_run_nothing(model: Path, tmp_path: Path) -> None:
    config = export_config(model, tmp_path / "bundle", dtype="bfloat16", verify=True)
    report = export(config)
    assert report.verification is not None
    assert not any(check.ran for check in report.verification.engines)
    assert report.verification.tokens is None
    assert "no bfloat16 products on CPUs" in "\n".join(report.verification.summary())


def buckets(text: str) -> tuple[str, str]:
    return command_line.config(tensorrt={"kv_buckets": text})


def test_dry_run_shows_plans_buckets_and_bytes_and_writes_nothing(
    model: Path, tmp_path: Path
) -> None:
    result = run(model, "-o", tmp_path / "bundle", *DUMMY, *buckets("16,64"), "--dry-run")
    assert result.exit_code == 0, result.output
    for text in ("2 layers x 2 plans", "KV buckets 16, 64", "deleted at the end", "8.9"):
        assert text in result.stdout
    as_json = json.loads(run(model, *DUMMY, "--dry-run", "--json").stdout)
    assert as_json["engines"][1]["capacities"] == [64]
    assert as_json["temporary_size"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--gpu-arch", "9.9"], 3, "allowed: 7.5"),
        (buckets("32"), 2, "too small for max_seq_len 64"),
        (buckets("some"), 2, "256,1024,2048"),
        (
            command_line.config(tensorrt={"hardware_compatible": True}),
            3,
            "does not support hardware-compatible",
        ),
    ],
)
def test_unsupported_exports_are_refused_before_any_work(
    arguments: list[str], code: int, text: str, model: Path, tmp_path: Path
) -> None:
    words = ("--load-format", "dummy", "--dtype", "float16", "--target", TARGET)
    arch = () if "--gpu-arch" in arguments else ("--gpu-arch", "8.9")
    result = run(model, "-o", tmp_path / "bundle", *words, *arch, *arguments)
    assert result.exit_code == code, result.output
    assert text in result.stderr
    assert list(tmp_path.iterdir()) == []
