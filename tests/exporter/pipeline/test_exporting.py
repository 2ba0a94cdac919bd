from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import onnx
import pytest
import torch
from fixture_types import Checkpoints
from mutations import digests
from safetensors.torch import load_file

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle.place import Place
from skipdec.engines.errors import SkipDecError
from skipdec.engines.host.events import Events
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.pipeline.report import ExportReport

RESUMABLE = {"embed", *(f"layer_{index:03d}" for index in range(6)), "head", "candidates"}


@pytest.fixture(scope="session")
def model(checkpoint: Checkpoints) -> str:
    return str(checkpoint("pre_norm"))


@pytest.fixture(scope="session")
def undisturbed(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return digests of an uninterrupted export, which leaves its traces in this process."""
    output = tmp_path_factory.mktemp("undisturbed") / "bundle"
    export_to(output, model)
    return digests(output)


def export_to(output: Path, model: str, **options: object) -> ExportReport:
    return export(ExportConfig(model=model, output=output, **{"verify": False, **options}))


class Resumed(Events):
    """Collects names of engines reused from an earlier run; can interrupt after some engines."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.resumed: set[str] = set()
        self._left = interrupt_after

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        if "reused" in detail:
            self.resumed.add(item)
        if detail and self._left is not None:  # one engine done
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt


def test_an_interrupted_export_publishes_nothing_and_resumes(
    model: str, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    config = ExportConfig(model=model, output=tmp_path / "bundle", verify=False)
    with pytest.raises(KeyboardInterrupt):
        export(config, Resumed(interrupt_after=3))
    assert not config.output.exists()
    events = Resumed()
    export(config, events)
    assert events.resumed == {"embed", "layer_000", "layer_001"}
    assert digests(config.output) == undisturbed


def test_a_signal_does_not_interrupt_publishing(
    model: str, undisturbed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Place.take

    def interrupted(place: Place, directory: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        take(place, directory)

    monkeypatch.setattr(Place, "take", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        report = export_to(tmp_path / "bundle", model)
    finally:
        signal.signal(signal.SIGINT, before)
    assert digests(report.output) == undisturbed


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"resume": False}])
def test_engines_of_another_request_are_not_reused(
    options: dict[str, object], model: str, tmp_path: Path
) -> None:
    config = ExportConfig(model=model, output=tmp_path / "bundle", verify=False)
    with pytest.raises(KeyboardInterrupt):
        export(config, Resumed(interrupt_after=5))
    events = Resumed()
    export(config.model_copy(update=options), events)
    assert events.resumed == set()


def test_an_engine_damaged_between_two_runs_is_rebuilt(
    model: str, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    config = ExportConfig(model=model, output=tmp_path / "bundle", verify=False)
    with pytest.raises(KeyboardInterrupt):
        export(config, Resumed(interrupt_after=4))
    (weights,) = (tmp_path / ".bundle.partial/engines").glob("*/layer_001.weights")
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    events = Resumed()
    export(config, events)
    assert events.resumed == {"embed", "layer_000", "layer_002"}
    assert digests(config.output) == undisturbed


def test_changed_weights_of_one_layer_rebuild_only_that_layer(model: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    directory = Path(shutil.copytree(model, tmp_path / "pre_norm"))
    config = ExportConfig(model=str(directory), output=tmp_path / "bundle", verify=False)
    with pytest.raises(KeyboardInterrupt):
        export(config, Resumed(interrupt_after=9))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.decoder.layers.2.fc1.bias"] += 1
    save_file(tensors, directory / "model.safetensors")
    events = Resumed()
    export(config, events)
    assert events.resumed == RESUMABLE - {"layer_002"}


@pytest.mark.parametrize("options", [{"jobs": 3}, {"keep_canonical": True}])
def test_engines_do_not_depend_on_jobs_or_keep_canonical(
    options: dict[str, object], model: str, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "elsewhere"
    export_to(output, model, **options)
    engines = {path for path in undisturbed if path.startswith("engines/")}
    assert {path: digests(output)[path] for path in engines} == {
        path: undisturbed[path] for path in engines
    }


def test_bin_and_safetensors_give_the_same_engines(
    model: str, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(model, tmp_path / "pre_norm"))
    weights = directory / "model.safetensors"
    torch.save(load_file(weights), directory / "pytorch_model.bin")
    weights.unlink()
    output = tmp_path / "bundle"
    export_to(output, str(directory))
    assert {k for k, v in digests(output).items() if undisturbed[k] != v} == {"manifest.json"}
    source = EngineBundle.open(output).manifest.source
    assert source["load_format"] == "bin"


def test_a_bundle_contains_no_path_of_this_machine(model: str, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    export_to(output, model, keep_canonical=True)
    for path in output.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(tmp_path).encode() not in content
            assert model.encode() not in content


def test_canonical_engines_are_kept_on_request_as_plain_onnx(model: str, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    export_to(output, model, keep_canonical=True, quantize="int8")
    bundle = EngineBundle.open(output, verify="full")
    assert {spec.name for spec in bundle.manifest.canonical} == RESUMABLE
    for spec in bundle.manifest.canonical:
        graph = onnx.load(output / spec.graph).graph  # with its external data
        assert {node.domain for node in graph.node} == {""}


def test_two_exports_to_one_place_do_not_mix(model: str, tmp_path: Path) -> None:
    config = ExportConfig(model=model, output=tmp_path / "bundle", verify=False)

    class Second(Events):
        def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
            if item == "layer_000":
                with pytest.raises(SkipDecError, match="is being written by process"):
                    export(config)

    export(config, Second())
    EngineBundle.open(tmp_path / "bundle", verify="full")


def test_the_report_lists_what_was_built(model: str, tmp_path: Path) -> None:
    report = export_to(tmp_path / "bundle", model)
    bundle = EngineBundle.open(tmp_path / "bundle")
    built = [spec.name for spec in bundle.manifest.all_engines]
    assert [engine.name for engine in report.engines] == built
    assert report.digest == bundle.manifest.digest
    assert report.size == sum(record.size for record in bundle.manifest.files)
    assert report.peak_memory > 1 << 20
    assert ExportReport.model_validate_json(report.model_dump_json()) == report
