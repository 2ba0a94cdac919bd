"""A target added as one object and one table entry is exported, verified, run and suggested."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import UsageError
from skipdec.engines.host.events import Events
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from skipdec.engines.targets import ONNX_RUNTIME, TARGETS, exported_targets
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.graphs.lowering import LoweredEngine
from skipdec.exporter.graphs.onnxruntime import lower
from skipdec.exporter.pipeline.exporting import export, output_path
from skipdec.exporter.verification.bundle import verify_bundle
from skipdec.exporter.verification.report import VerificationRequest

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = [[5, 9, 11], [7]]


def lower_with_a_name(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    lowered = lower(graph, kind, model, precision)
    lowered.graph.graph.name = "lowered for a toy"
    return lowered


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("skipdec.toy_lowering")
    module.lower = lower_with_a_name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    toy = replace(
        ONNX_RUNTIME,
        lowering="toy_lowering:lower",
        backends={"cpu": ONNX_RUNTIME.backends["cpu"]},
    )
    monkeypatch.setitem(TARGETS, "toy", toy)


def test_an_export_for_an_added_target_is_verified_and_generates(
    checkpoint: Callable[[str], Path], exported: Callable[..., Path], tmp_path: Path
) -> None:
    assert exported_targets()[-1] == "toy"
    config = ExportConfig(
        model=str(checkpoint("pre_norm")),
        output=tmp_path / "toy",
        target="toy",
        quantize="int8",
        verify=False,  # another process would lack the new entry
    )
    export(config)
    graph = onnx.load(tmp_path / "toy/engines/toy/layer_003.onnx", load_external_data=False).graph
    assert graph.name == "lowered for a toy"
    request = VerificationRequest(
        directory=tmp_path / "toy", source=config.source, precision=config.precision()
    )
    verify_bundle(request, Events()).raise_if_failed("toy")
    with Generator.open(tmp_path / "toy", threads=1) as generator:
        seen = generator.generate(PROMPTS, GREEDY, schedule="linear:max=4,min=2,horizon=4")
    with Generator.open(exported("pre_norm", quantize="int8"), threads=1) as generator:
        expected = generator.generate(PROMPTS, GREEDY, schedule="linear:max=4,min=2,horizon=4")
    assert [result.outputs[0].token_ids for result in seen] == [
        result.outputs[0].token_ids for result in expected
    ]
    with pytest.raises(UsageError, match="'cuda', where toy engines can't run; allowed: cpu"):
        Generator.open(tmp_path / "toy", device="cuda")


def test_bundles_are_named_after_the_added_target() -> None:
    config = ExportConfig(model="opt-125m", target="toy")
    assert output_path(config).name == "opt-125m-toy.skipdec"


def test_an_unknown_target_is_refused_and_the_added_one_suggested(tmp_path: Path) -> None:
    config = ExportConfig(model=str(tmp_path), target="toys", output=tmp_path / "bundle")
    with pytest.raises(
        UsageError, match=r"'toys' is unknown; did you mean 'toy'. allowed: onnxruntime, .*, toy"
    ):
        export(config)
