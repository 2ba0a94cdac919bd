"""``skipdec upgrade``: a bundle of format 2 becomes what an export gives now; no engine changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hollow_bundles import write_hollow_bundle
from old_bundles import make_old, unchanged, write_old_manifest, write_old_schedule
from typer.testing import CliRunner, Result

from skipdec import upgrade_bundle, write_schedule
from skipdec.cli import build_app
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle import upgrading as upgrading_files
from skipdec.engines.bundle.place import WriterLock
from skipdec.engines.documents import canonical_text
from skipdec.engines.errors import BundleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.bundle import bundle_schedule
from skipdec.runtime.schedule.text import parse_schedule


def upgrade(*bundles: Path) -> Result:
    return CliRunner().invoke(build_app(), ["upgrade", *map(str, bundles)])


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schedule = parse_schedule("2x:horizon=8,prompt=decay", num_layers=6)
    return write_hollow_bundle(tmp_path / "bundle", schedule).path


def drop_bits(document: dict[str, Any]) -> None:
    document["precision"]["int8_weight_bits"] = 7


@pytest.mark.parametrize("edit", [unchanged, drop_bits], ids=["last", "with int8_weight_bits"])
def test_an_old_bundle_becomes_what_a_new_export_gives(
    path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    new = contents(path)
    make_old(path, edit)
    graph = next(path.rglob("*.onnx"))
    before = graph.stat().st_mtime_ns
    with pytest.raises(BundleError, match=rf"run: skipdec upgrade {path}"):
        EngineBundle.open(path)
    upgraded = upgrade(path)
    assert (upgraded.exit_code, upgraded.stdout) == (0, f"{path}: upgraded to format 3\n")
    assert contents(path) == new
    assert graph.stat().st_mtime_ns == before
    assert [name.name for name in path.parent.iterdir()] == ["bundle"]
    again = upgrade(path)
    assert (again.exit_code, again.stdout) == (0, f"{path}: has format 3\n")


@pytest.mark.parametrize(
    ("form", "unused"),
    [
        ({"target": "onnxruntime"}, "any"),
        ({"target": "onnxruntime", "kernels": "skipdec"}, "any"),
        ({"target": "tensorrt"}, "finite"),
        ({"target": "tensorrt-rtx"}, "finite"),
    ],
    ids=lambda form: "-".join(form.values()) if isinstance(form, dict) else form,
)
def test_what_unused_cache_may_hold_follows_from_the_target(
    path: Path, form: dict[str, str], unused: str
) -> None:
    make_old(path, lambda document: document.update(form))
    assert upgrade_bundle(path)
    assert EngineBundle.open(path).manifest.kv_cache.unused == unused


@pytest.mark.parametrize("failing", ["replace_file", "write_schedule"])
def test_one_that_was_interrupted_is_finished(
    path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = contents(path)
    make_old(path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(upgrading_files, failing, stop)
        with pytest.raises(KeyboardInterrupt):
            upgrade_bundle(path)
    with pytest.raises(BundleError, match=rf"run: skipdec upgrade {path}"):
        EngineBundle.open(path)
    assert upgrade_bundle(str(path))
    assert contents(path) == new


def test_a_new_manifest_beside_an_old_schedule_and_the_other_way_round(path: Path) -> None:
    new = contents(path)
    for make in (write_old_manifest, write_old_schedule):
        make(path)
        assert upgrade_bundle(path)
        assert contents(path) == new


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (
            lambda d: d.update(format_version=1),
            "has format version 1; this skipdec reads 3; export",
        ),
        (lambda d: d.update(format_version=99), "has format version 99"),
        (lambda d: d.update(format_version="2"), "has format version '2'"),
        (lambda d: d.update(target="abacus"), "is for 'abacus'; allowed: onnxruntime"),
        (lambda d: d["engines"].pop(), "expected: .*'head'"),
        (lambda d: d["files"][0].update(size=9), "has .* bytes; expected 9"),
        (lambda d: d.update(requires=["a"]), "requires a, which this skipdec does not know"),
    ],
)
def test_what_is_no_bundle_of_format_2_is_refused_and_stays(
    path: Path, edit: Callable[[dict[str, Any]], object], text: str
) -> None:
    make_old(path, edit)
    before = contents(path)
    with pytest.raises(BundleError, match=text):
        upgrade_bundle(path)
    assert contents(path) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"name": "hollow"', '"name": "narrow"'),
        lambda text: json.dumps(json.loads(text)),
        lambda text: text[:-2],
        lambda text: "[]",
    ],
    ids=["edited", "reformatted", "cut", "no object"],
)
def test_a_damaged_manifest_is_refused_and_stays(path: Path, damage: Callable[[str], str]) -> None:
    make_old(path)
    file = path / "manifest.json"
    file.write_text(damage(file.read_text()))
    before = contents(path)
    result = upgrade(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: " in result.stderr
    assert contents(path) == before


def test_a_changed_graph_is_found_and_changed_weights_are_not_looked_for(path: Path) -> None:
    make_old(path)
    weights = next(path.rglob("*.weights"))
    weights.write_bytes(bytes(weights.stat().st_size))
    assert upgrade_bundle(path)
    make_old(path)
    graph = next(path.rglob("*.onnx"))
    graph.write_bytes(bytes(graph.stat().st_size))
    with pytest.raises(BundleError, match=rf"{graph.name}: has SHA-256"):
        upgrade_bundle(path)


@pytest.mark.parametrize("content", [None, "{", '{"schedule": {}, "digest": "0"}'])
def test_a_damaged_schedule_is_named_and_can_be_set_then(path: Path, content: str | None) -> None:
    make_old(path)
    file = path / "schedule.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(BundleError, match=r"schedule\.json.*skipdec schedule set"):
        upgrade_bundle(path)
    schedule = write_schedule(path, "2x:horizon=8")
    assert bundle_schedule(EngineBundle.open(path)) == schedule
    assert not upgrade_bundle(path)


def test_a_bundle_that_is_being_written_is_left_alone(path: Path, tmp_path: Path) -> None:
    make_old(path)
    with WriterLock(path), pytest.raises(BundleError, match="is being written by process"):
        upgrade_bundle(path)
    with pytest.raises(BundleError, match="does not exist"):
        upgrade_bundle(tmp_path / "none")
    with pytest.raises(BundleError, match=r"is not a bundle: it has no manifest\.json"):
        upgrade_bundle(tmp_path)


def test_of_several_those_that_can_be_are_upgraded(path: Path, tmp_path: Path) -> None:
    make_old(path)
    result = upgrade(tmp_path / "none", path, tmp_path)
    assert result.stdout == f"{path}: upgraded to format 3\n"
    assert result.exit_code != 0
    assert "none: does not exist" in result.stderr
    assert "is not a bundle" in result.stderr


def test_a_swap_that_was_interrupted_is_repaired_first(path: Path) -> None:
    make_old(path)
    path.rename(path.with_name(f".{path.name}.old"))
    assert upgrade_bundle(path)
    assert EngineBundle.open(path).path == path


def engine(name: str, kind: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401
    graph, weights = (f"engines/onnxruntime/{name}.{suffix}" for suffix in ("onnx", "weights"))
    tensors: dict[str, Any] = {"inputs": [], "outputs": [], "buckets": [], "layer_index": None}
    return tensors | {"name": name, "kind": kind, "graph": graph, "weights": [weights]} | facts


PAST_KEY = {"name": "past_key", "role": "past_key", "dtype": "float32", "shape": ["B", 2, "T", 4]}
ENGINES = [
    engine("embed", "embed", step_bytes=10),
    engine("layer_000", "layer", layer_index=0, inputs=[PAST_KEY], step_bytes=1000),
    engine("head", "head", step_bytes=2000),
]
BEFORE_FAMILIES: dict[str, Any] = {  # as skipdec wrote it before there was more than OPT to be said
    "format_version": 2,
    "target": "onnxruntime",
    "model": {
        "name": "hollow",
        "num_layers": 1,
        "hidden_size": 8,
        "word_embed_proj_dim": 8,
        "num_heads": 2,
        "ffn_dim": 16,
        "vocab_size": 32,
        "max_position_embeddings": 256,
        "max_seq_len": 256,
        "do_layer_norm_before": True,
        "final_layer_norm": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "activation_function": "relu",
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    },
    "precision": {
        **dict.fromkeys(("quantize", "head_quantize"), "none"),
        **dict.fromkeys(("block_size", "accuracy_level", "int8_weight_bits", "activation_ranges")),
        "dtype": "float32",
    },
    "engines": ENGINES,
    "candidates": None,
    "canonical": [],
    "build": None,
    "tokenizer": None,
    "files": [
        {"path": path, "size": 0, "sha256": hashlib.sha256().hexdigest()}
        for path in sorted(path for each in ENGINES for path in (each["graph"], *each["weights"]))
    ],
    "tool_versions": {},
    "source": {},
    "digest": "b45f6004660dc8881a23a6fda406182169273c576dfd1e3d448195f2fff836c9",
}


def test_a_manifest_of_the_first_versions_has_the_same_facts(tmp_path: Path) -> None:
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(1)).path
    for record in BEFORE_FAMILIES["files"]:
        (bundle / record["path"]).write_bytes(b"")
    (bundle / "manifest.json").write_text(canonical_text(BEFORE_FAMILIES))
    assert upgrade_bundle(bundle)
    manifest = EngineBundle.open(bundle).manifest
    model = manifest.model
    assert (model.family, model.num_kv_heads, model.head_dim) == ("opt", 2, 4)
    upgraded = json.loads(manifest.to_json())
    assert upgraded["model"] == BEFORE_FAMILIES["model"]
    precision = dict(BEFORE_FAMILIES["precision"])
    del precision["int8_weight_bits"]
    assert upgraded == BEFORE_FAMILIES | {
        "format_version": 3,
        "digest": manifest.digest,
        "kv_cache": {"shares_buffer": True, "unused": "any"},
        "precision": precision,
    }
