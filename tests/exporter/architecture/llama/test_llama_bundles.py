"""Bundles of the LLaMA family do not depend on the spelling of config.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fixture_types import Checkpoints

from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export


def test_both_spellings_of_a_rotation_export_the_same_bytes(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Transformers 5 writes ``rope_parameters``; 4 wrote ``rope_theta`` and ``rope_scaling``."""
    old = tmp_path / "old" / "llama"
    shutil.copytree(checkpoint("llama"), old)
    config = json.loads((old / "config.json").read_bytes())
    scaling = config.pop("rope_parameters")
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    assert scaling["rope_type"] == "llama3"
    (old / "config.json").write_text(json.dumps(config))
    outputs = tmp_path / "a" / "bundle", tmp_path / "b" / "bundle"
    for model, output in zip((checkpoint("llama"), old), outputs, strict=True):
        export(ExportConfig(model=str(model), output=output, verify=False))
    new_files, old_files = (
        {path.relative_to(output): path.read_bytes() for path in output.rglob("*.*")}
        for output in outputs
    )
    assert Path("manifest.json") in new_files
    assert new_files == old_files
