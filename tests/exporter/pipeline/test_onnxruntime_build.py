"""``skipdec build --target onnxruntime`` equals an export for ONNX Runtime's operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_types import Exported
from typing_extensions import override

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle.place import exchange
from skipdec.engines.errors import BundleError, UsageError
from skipdec.engines.host.events import Events
from skipdec.exporter.config import BuildConfig
from skipdec.exporter.pipeline.build import build_bundle, plan_build


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        ("post_norm", {}),
        ("post_norm", {"quantize": "int8"}),
        ("post_norm", {"dtype": "float16"}),
        ("llama", {"quantize": "int4", "block_size": 32}),
        ("qwen3", {"quantize": "int8-block"}),
    ],
)
def test_a_build_equals_an_export(
    exported: Exported, tmp_path: Path, structure: str, options: dict[str, str]
) -> None:
    dtype = {name: options[name] for name in ("dtype",) if name in options}
    source = exported(structure, kernels="auto", keep_canonical=True, **dtype)
    wanted = EngineBundle.open(exported(structure, kernels="onnxruntime", **options)).manifest
    weights = {name: value for name, value in options.items() if name != "dtype"}
    config = BuildConfig(bundle=source, output=tmp_path / "b", target="onnxruntime", **weights)
    build_bundle(config)
    built = EngineBundle.open(tmp_path / "b", verify="full")
    assert built.manifest.model_dump(exclude={"digest", "tool_versions"}) == wanted.model_dump(
        exclude={"digest", "tool_versions"}
    )
    assert built.schedule_document == EngineBundle.open(source).schedule_document


class Swapping(Events):
    """Exchanges two bundles once a build begins."""

    def __init__(self, *bundles: Path) -> None:
        self._bundles = bundles

    @override
    def stage(self, name: str, total: int | None = None) -> None:
        if name == "building":
            assert exchange(*self._bundles)


def test_a_source_replaced_during_a_build_is_refused(exported: Exported, tmp_path: Path) -> None:
    for name, options in (("source", {}), ("other", {"load_format": "dummy"})):
        made = exported("post_norm", kernels="onnxruntime", keep_canonical=True, **options)
        EngineBundle.open(made).save(tmp_path / name)
    config = BuildConfig(bundle=tmp_path / "source", output=tmp_path / "b", target="onnxruntime")
    with pytest.raises(BundleError, match="was replaced since the work began"):
        build_bundle(config, Swapping(tmp_path / "source", tmp_path / "other"))
    assert not (tmp_path / "b").exists()


def test_a_bundle_without_canonical_engines_is_refused(exported: Exported, tmp_path: Path) -> None:
    config = BuildConfig(bundle=exported("post_norm"), output=tmp_path, target="onnxruntime")
    with pytest.raises(BundleError, match=r"no canonical engines to build from; .* --keep-canon"):
        plan_build(config)


def test_bfloat16_and_ranges_are_refused(exported: Exported, tmp_path: Path) -> None:
    source = exported("post_norm", kernels="skipdec", keep_canonical=True, dtype="bfloat16")
    config = BuildConfig(bundle=source, output=tmp_path / "b", target="onnxruntime")
    with pytest.raises(UsageError, match="has canonical engines of bfloat16"):
        plan_build(config)
    with pytest.raises(UsageError, match="the canonical weights have its factors already"):
        BuildConfig(bundle=tmp_path, target="onnxruntime", ranges=tmp_path / "ranges.json")
