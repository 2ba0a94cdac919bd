"""``skipdec build`` compiles canonical engines to real plans without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import pytest
from mutations import digests
from plan_requests import needs_tensorrt_rtx
from tensorrt_bundles import ENGINES, TARGET, TENSORRT, Watched, export_config, write_config

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError, SkipDecError, UsageError
from skipdec.engines.host import installation
from skipdec.engines.manifest import Manifest, PrecisionSpec
from skipdec.exporter.config import BuildConfig
from skipdec.exporter.pipeline import build as bundle_build
from skipdec.exporter.pipeline.build import build_bundle, output_path
from skipdec.exporter.pipeline.exporting import export

pytestmark = [needs_tensorrt_rtx, pytest.mark.usefixtures("plans_built_once")]

# Hides the packages that a machine which only builds lacks.
WITHOUT_TORCH = """
import sys
ABSENT = {"torch", "transformers", "safetensors", "huggingface_hub", "onnxscript", "onnxruntime"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from skipdec.cli import main
try:
    main()
finally:
    assert not ABSENT & sys.modules.keys()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a quantised ONNX Runtime bundle with canonical engines; do not change it."""
    directory = tmp_path_factory.mktemp("source")
    model = write_config(directory / "tiny")
    options = {"quantize": "int8", "schedule": "linear:max=2,min=2,warmup=1,horizon=7"}
    config = export_config(
        model,
        directory / "bundle",
        target="onnxruntime",
        tensorrt=None,
        keep_canonical=True,
        **options,
    )
    export(config)
    return directory / "bundle"


def build_config(bundle: Path, output: Path, **options: Any) -> BuildConfig:  # noqa: ANN401
    values = {"bundle": bundle, "output": output, "target": TARGET, "tensorrt": TENSORRT}
    return BuildConfig(**{**values, **options})


def built(bundle: Path, output: Path, **options: Any) -> Manifest:  # noqa: ANN401
    build_bundle(build_config(bundle, output, **options))
    return EngineBundle.open(output, verify="full").manifest


@pytest.fixture(scope="module")
def plans(source: Path, plans_built_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of plans built from ``source``, two at a time; do not change it."""
    output = tmp_path_factory.mktemp("plans") / "built"
    build_bundle(build_config(source, output, jobs=2))
    return output


run = partial(command_line.run, "build")


@pytest.mark.slow
def test_build_needs_no_torch_and_leaves_the_source_unchanged(source: Path, tmp_path: Path) -> None:
    before = digests(source)
    words = ("build", source, "--target", TARGET, "--gpu-arch", "8.9", "-o", tmp_path / "built")
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, words), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [engine["name"] for engine in report["engines"]] == list(ENGINES)
    assert report["verification"] is None
    bundle = EngineBundle.open(tmp_path / "built", verify="full")
    assert bundle.manifest.precision == PrecisionSpec(dtype="float16")
    assert bundle.schedule_document == EngineBundle.open(source).schedule_document
    tokenizers = [path / "tokenizer.json" for path in (source, tmp_path / "built")]
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    assert digests(source) == before


def test_build_equals_an_export_to_the_target(source: Path, plans: Path, tmp_path: Path) -> None:
    from_bundle = EngineBundle.open(plans, verify="full").manifest
    model = source.parent / "tiny"
    export(export_config(model, tmp_path / "exported"))
    exported = EngineBundle.open(tmp_path / "exported").manifest
    plan_bytes = {"files", "digest"}
    assert from_bundle.model_dump(exclude=plan_bytes) == exported.model_dump(exclude=plan_bytes)
    assert [record.path for record in from_bundle.files] == [
        record.path for record in exported.files
    ]


@pytest.mark.parametrize(
    ("options", "codes_per_byte"),
    [
        ({"quantize": "int8"}, 1),
        ({"quantize": "int4", "block_size": 32, "head_quantize": "int8-block"}, 2),
    ],
)
def test_weights_are_quantised_from_canonical_weights(
    options: dict[str, Any], codes_per_byte: int, source: Path, tmp_path: Path
) -> None:
    manifest = built(source, tmp_path / "built", **options)
    assert manifest.precision.quantize == options["quantize"]
    codes = (64 * 192 + 64 * 64 + 2 * 64 * 96) // codes_per_byte
    assert codes < manifest.layers[0].step_bytes < codes + 8192


@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_ranges_are_read_and_recorded(quantize: str, source: Path, tmp_path: Path) -> None:
    names = ("self_attn.qkv_proj", "self_attn.out_proj", "fc1", "fc2")
    layer = {f"{name}.weight": 4.0 for name in names}
    ranges = tmp_path / "ranges.json"
    ranges.write_text(
        json.dumps(
            {
                "layers": {"layer_000": layer, "layer_001": layer},
                "head": {"lm_head.weight": 9.0},
            }
        )
    )
    output = tmp_path / "built"
    report = build_bundle(build_config(source, output, quantize=quantize, ranges=ranges))
    assert EngineBundle.open(output).manifest.precision.activation_ranges is not None
    assert report.engines[1].plans[0].layer_counts["QUANTIZE"] == 4


def test_a_build_resumes(source: Path, tmp_path: Path) -> None:
    config = build_config(source, tmp_path / "built")
    with pytest.raises(KeyboardInterrupt):
        build_bundle(config, Watched(interrupt_in="head"))
    events = Watched()
    build_bundle(config, events)
    assert events.resumed == {"embed", "layer_000", "layer_001"}


def test_the_default_name_contains_precision_and_target(source: Path) -> None:
    config = BuildConfig(bundle=source, target=TARGET, quantize="int4")
    assert output_path(config, EngineBundle.open(source)).name == (
        "tiny-fp16-int4-tensorrt-rtx.skipdec"
    )


def test_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    words = (source, "--target", TARGET, "--gpu-arch", "8.9", "-o", tmp_path / "built")
    assert "KV buckets 64" in run(*words, "--dry-run").stdout
    plan = json.loads(run(*words, "--dry-run", "--json").stdout)
    assert plan["build"]["kv_buckets"] == [64]
    assert list(tmp_path.iterdir()) == []


def test_missing_canonical_engines_are_reported_with_other_problems(
    plans: Path, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="export the model again with --keep-canonical"):
        built(plans, tmp_path / "again")
    with pytest.raises(SkipDecError) as caught:
        built(plans, plans, tensorrt=TENSORRT | {"kv_buckets": [8]})
    text = str(caught.value)
    for words in ("holds what is read", "--keep-canonical", "8, too small"):
        assert words in text


def test_a_loop_of_links_is_no_output(source: Path, tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    with pytest.raises(SkipDecError, match="exists and is not a bundle"):
        built(source, loop)


def test_a_damaged_source_is_not_compiled(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    weights = copy / "engines/canonical/layer_001.weights"
    content = bytearray(weights.read_bytes())
    content[5000] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BundleError, match=r"canonical/layer_001\.weights"):
        built(copy, tmp_path / "built")


def test_verify_hashes_plans_and_reports_that_they_were_not_run(
    plans: Path, tmp_path: Path
) -> None:
    shutil.copytree(plans, tmp_path / "built")
    result = command_line.run("verify", tmp_path / "built")
    assert result.exit_code == 0, result.output
    assert "plans were not run" in result.stdout
    plan = tmp_path / "built" / "engines" / TARGET / "layer_001.t64.plan"
    content = bytearray(plan.read_bytes())
    content[5000] ^= 1
    plan.write_bytes(content)
    result = command_line.run("verify", tmp_path / "built")
    assert result.exit_code == 1
    assert "layer_001.t64.plan" in result.stderr


def test_only_runnable_targets_can_be_built() -> None:
    with pytest.raises(UsageError, match="allowed: 'onnxruntime', 'tensorrt' or 'tensorrt-rtx'"):
        BuildConfig(bundle=Path("b"), target="canonical")
    assert run("b", "--target", "canonical").exit_code == 2


def test_missing_build_packages_are_named_with_the_pip_command(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find_spec = installation.find_spec
    monkeypatch.setattr(
        installation, "find_spec", lambda name: None if name == "onnx" else find_spec(name)
    )
    with pytest.raises(SkipDecError, match=r"onnx.*pip install .*\[tensorrt-rtx\]'"):
        bundle_build.plan_build(build_config(source, tmp_path / "built"))
