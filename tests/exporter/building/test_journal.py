"""A journal is trusted only as far as its digests match."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Checkpoints
from hollow_bundles import hollow_manifest

from skipdec.engines.bundle import file_record
from skipdec.engines.constants import __file__ as constants
from skipdec.engines.manifest import EngineKind, PrecisionSpec, SamplingDefaults
from skipdec.engines.targets import TARGETS
from skipdec.exporter.architecture.architecture import engine_parameters
from skipdec.exporter.building import journal
from skipdec.exporter.building.engine import BuiltEngine
from skipdec.exporter.building.journal import (
    JOURNAL_NAME,
    Journal,
    content_key,
    engine_code,
    tool_versions,
)
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource


@pytest.fixture
def line(tmp_path: Path) -> dict[str, Any]:
    """Return the single line of a journal in ``tmp_path``."""
    (tmp_path / "head.onnx").write_bytes(b"graph")
    built = BuiltEngine(
        spec=hollow_manifest(2).engines[-1],
        files=(file_record(tmp_path, "head.onnx"),),
        directory=tmp_path,
    )
    Journal(tmp_path).record("key", built)
    found = Journal(tmp_path).built("key")
    assert found is not None
    assert found.resumed
    document: dict[str, Any] = json.loads((tmp_path / JOURNAL_NAME).read_text())
    return document


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        (("engine", "spec"), {"step_bytes": 1}),
        (("engine", "spec"), {"name": "layer_001"}),
        (("engine",), {"plans": None}),
        ((), {"key": "other"}),
        ((), {"digest": "0" * 64}),
    ],
)
def test_a_line_with_a_changed_value_counts_as_absent(
    tmp_path: Path, line: dict[str, Any], keys: tuple[str, ...], change: dict[str, Any]
) -> None:
    inner = line
    for key in keys:
        inner = inner[key]
    inner.update(change)
    (tmp_path / JOURNAL_NAME).write_text(json.dumps(line) + "\n")
    assert Journal(tmp_path).built(line["key"]) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"digest": 1}', "[" * 100_000])
def test_an_invalid_line_counts_as_absent(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_NAME).write_text(text + "\n")
    assert Journal(tmp_path).built("key") is None


def test_a_line_truncated_by_a_kill_spoils_no_other(tmp_path: Path, line: dict[str, Any]) -> None:
    path = tmp_path / JOURNAL_NAME
    path.write_text(path.read_text()[:-9])
    resumed = Journal(tmp_path)
    assert resumed.built("key") is None
    resumed.record("key", BuiltEngine.model_validate(line["engine"] | {"directory": tmp_path}))
    assert Journal(tmp_path).built("key") is not None


def test_the_gpu_distribution_of_onnxruntime_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(distribution: str) -> str:
        if distribution == "onnxruntime":
            raise PackageNotFoundError(distribution)
        return f"{distribution} 1.2"

    monkeypatch.setattr(journal, "version", version)
    assert tool_versions(("onnxruntime",)) == {"onnxruntime": "onnxruntime-gpu 1.2"}
    monkeypatch.setattr(journal, "_ALSO_FROM", {})
    with pytest.raises(PackageNotFoundError):
        tool_versions(("onnxruntime",))


def test_engines_are_rebuilt_when_a_module_that_builds_them_changes() -> None:
    builders = ["exporter.building.engine", "exporter.building.plan_compiler", "engines.trt.build"]
    for target in TARGETS.values():
        builders += (name.partition(":")[0] for name in (target.lowering, target.quantizer))
    code = "\n".join(
        [
            "import re, sys",
            *(f"import skipdec.{module}" for module in builders),
            "names = [*filter(re.compile(r'skipdec[.](engines|exporter)').match, sys.modules)]",
            "print(*(sys.modules[name].__file__ for name in names), sep='\\n')",
        ]
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {Path(line).resolve() for line in run.stdout.splitlines()}
    assert len(loaded) > len(builders)
    assert loaded - {*engine_code()} == set()
    assert Path(constants).resolve().with_name("constants.json") in engine_code()


def test_end_tokens_and_sampling_defaults_rebuild_no_engine(checkpoint: Checkpoints) -> None:
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint("pre_norm"))))
    parameters = engine_parameters(EngineKind.HEAD, opened.model)
    given = {"end_token_ids": (2, 3), "sampling_defaults": SamplingDefaults(top_k=5)}
    for changes, count in ((given, 1), ({"vocab_size": 7}, 2)):
        models = opened.model, opened.model.model_copy(update=changes)
        keys = {
            content_key(
                "head", "canonical", "", parameters, model, PrecisionSpec(), opened.reader, {}
            )
            for model in models
        }
        assert len(keys) == count
