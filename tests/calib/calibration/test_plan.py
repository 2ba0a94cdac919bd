"""Build calibrated ranges into real TensorRT plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calibrations import plan_of
from plan_requests import needs_tensorrt_rtx
from tiny_models import BASE
from transformers import OPTConfig, OPTForCausalLM

from skipdec.calib.calibration.calibration import run_calibration
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.host.events import Events
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a one-layer checkpoint whose attention TensorRT fuses, and calibrated ranges."""
    directory = tmp_path_factory.mktemp("ranged")
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "ffn_dim": 128}
    OPTForCausalLM(OPTConfig(**{**BASE, **sizes})).save_pretrained(directory / "model")
    report = run_calibration(plan_of(directory / "model", migrate=0.5), Events())
    path = directory / "ranges.json"
    path.write_text(report.ranges.model_dump_json())
    return directory / "model", path


@needs_tensorrt_rtx
@pytest.mark.usefixtures("verified_here")
@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_export_builds_plans_with_calibrated_ranges_and_factors(
    quantize: Any,  # noqa: ANN401
    ranged: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    model, ranges = ranged
    output = tmp_path / "bundle"
    export(
        ExportConfig(
            model=str(model),
            output=output,
            target="tensorrt-rtx",
            dtype="float16",
            quantize=quantize,
            ranges=ranges,
            tensorrt={"gpu_arch": "8.9"},
            verify=quantize == "int8",  # canonical engines are migrated as well
        )
    )
    manifest = EngineBundle.open(output).manifest
    assert manifest.precision.quantize == quantize
    assert manifest.precision.activation_ranges is not None
    assert "migration" in manifest.source
