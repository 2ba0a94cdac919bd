"""A broken, foreign or inconsistent manifest is refused with all reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.documents import document_digest
from skipdec.engines.errors import BundleError
from skipdec.engines.manifest import FileRecord, Manifest


def edited(bundle: EngineBundle, edit: Callable[[dict[str, Any]], object]) -> str:
    """Return the manifest's text after ``edit``, with a matching digest."""
    document = bundle.manifest.model_dump(mode="json", exclude={"digest"})
    edit(document)
    return json.dumps(document | {"digest": document_digest(document)})


def test_a_manifest_survives_serialisation(bundle: EngineBundle) -> None:
    text = bundle.manifest.to_json()
    assert Manifest.from_json(text, "manifest.json") == bundle.manifest
    assert Manifest.from_json(text, "manifest.json").to_json() == text


def test_sizes_not_implied_by_the_heads_are_written(bundle: EngineBundle) -> None:
    facts = {"family": "toy", "num_kv_heads": 1, "head_dim": 16, "rope_theta": 1e4}
    text = edited(bundle, lambda document: document["model"].update(facts))
    model = Manifest.from_json(text, "manifest.json").model
    assert (model.family, model.num_kv_heads, model.head_dim) == ("toy", 1, 16)
    assert facts.items() <= model.model_dump().items()


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda d: d.update(format_version=99), "format version 99; this skipdec reads 5"),
        (lambda d: d["model"].update(sizes=[1]), "model.sizes.*: Input should be"),
        (lambda d: d.pop("model"), "model: Field required"),
        (lambda d: d["engines"].pop(), "engines has 3 entries; expected: 4"),
        (
            lambda d: d["engines"][2].update(name="layer_1"),
            "engine layer_1 is a layer with layer_index 1; expected: layer_001, a layer with",
        ),
        (lambda d: d["files"].pop(0), "not listed in files"),
        (lambda d: d["files"][0].update(path="../secret"), "leaves the bundle"),
        (lambda d: d["files"][0].update(path="/etc/passwd"), "leaves the bundle"),
        (lambda d: d["files"][0].update(sha256="short"), "files.0.sha256"),
        (lambda d: d["engines"][0].update(graph="a/../../b"), "leaves the bundle"),
        (lambda d: d["model"].update(num_layers=4 * 10**9), "model.num_layers: .* than or equal"),
        (lambda d: d["model"].update(vocab_size=10**4299), "an integer of more than 64 bits"),
        (lambda d: d["files"].append(d["files"][0]), "files lists .* twice"),
        (lambda d: d["files"][0].update(path="engines//embed"), "another way to write"),
        (
            lambda d: d["engines"][1].update(layer_index=1),
            "engine layer_000 is a layer with layer_index 1; expected: layer_000, a "
            "layer with layer_index 0",
        ),
        (lambda d: d.update(kernels="cuda"), "kernels: Input should be 'skipdec'"),
        (lambda d: d["precision"].update(kv_dtype="int8"), "kv_dtype is int8 without kernels"),
        (lambda d: d["precision"].update(table_dtype="float16"), "table_dtype is float16; allowed"),
        (lambda d: d.update(candidates=d["engines"][0]), "candidates: .*is engine embed, a embed"),
        (lambda d: d.update(prompt_template="none"), "prompt_template: .*with {prompt} once"),
        (lambda d: d["model"].update(eos_token_id=-2), "eos_token_id: .*is -2; allowed: 0 to"),
        (lambda d: d["model"].update(eos_token_id=2**24), "eos_token_id: .*is 16777216; allowed"),
        (lambda d: _end_at(d, [2]), r"model\.end_token_ids: .*is \[2\]; allowed: eos_"),
        (lambda d: _end_at(d, [3, 2]), r"end_token_ids: .*is \[3, 2\]; allowed: eos_"),
        (lambda d: _end_at(d, [2, 3, 3]), "and then others, each once"),
        (lambda d: _end_at(d, [2, 10**6]), "the model's vocabulary"),
    ],
)
def test_an_edited_manifest_is_refused_even_with_a_matching_digest(
    bundle: EngineBundle, edit: Callable[[dict[str, Any]], object], text: str
) -> None:
    with pytest.raises(BundleError, match=text):
        Manifest.from_json(edited(bundle, edit), "manifest.json")
    (bundle.path / "manifest.json").write_text(edited(bundle, edit))
    with pytest.raises(BundleError, match=text):
        EngineBundle.open(bundle.path)


def _end_at(document: dict[str, Any], ends: list[int]) -> None:
    document["model"]["eos_token_id"] = 2
    document["model"].update(end_token_ids=ends)


def test_several_end_tokens_reach_the_model_and_one_keeps_the_bytes(bundle: EngineBundle) -> None:
    assert "end_token_ids" not in bundle.manifest.to_json()
    text = edited(bundle, lambda document: _end_at(document, [2, 5, 3]))
    read = Manifest.from_json(text, "manifest.json")
    assert read.model.end_token_ids == (2, 5, 3)
    assert Manifest.from_json(read.to_json(), "manifest.json") == read
    alone = edited(bundle, lambda document: document["model"].update(eos_token_id=2))
    assert Manifest.from_json(alone, "manifest.json").model.end_token_ids == (2,)


def test_all_problems_are_reported_together(bundle: EngineBundle) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["model"]["num_layers"] = 0
        document["files"][0]["size"] = -1

    with pytest.raises(BundleError) as raised:
        Manifest.from_json(edited(bundle, edit), "manifest.json")
    assert len(raised.value.problems) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\udcff".encode(errors="surrogateescape")])
def test_non_object_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(BundleError):
        Manifest.from_json(text, "manifest.json")


def test_unknown_fields_are_ignored(bundle: EngineBundle) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["colour"] = document["engines"][1]["colour"] = "red"

    read = Manifest.from_json(edited(bundle, edit), "manifest.json")
    assert read.with_digest() == bundle.manifest


def test_a_prompt_template_is_written_only_if_there_is_one(
    bundle: EngineBundle,
) -> None:
    assert "prompt_template" not in bundle.manifest.to_json()
    wrapped = bundle.manifest.model_copy(update={"prompt_template": "{prompt}\nTL;DR:"})
    text = wrapped.with_digest().to_json()
    assert Manifest.from_json(text, "manifest.json").prompt_template == "{prompt}\nTL;DR:"


def test_kernels_and_cache_type_are_written_if_given(bundle: EngineBundle) -> None:
    assert not {"kernels", "kv_dtype", "table_dtype"} & set(bundle.manifest.to_json().split('"'))
    precision = bundle.manifest.precision.model_copy(update={"kv_dtype": "int8"})
    chosen = bundle.manifest.model_copy(update={"kernels": "skipdec", "precision": precision})
    read = Manifest.from_json(chosen.with_digest().to_json(), "manifest.json")
    assert (read.kernels, read.kv_dtype, read.kv_width) == ("skipdec", "int8", 8)


def test_a_manifest_with_a_wrong_digest_is_not_parsed(
    bundle: EngineBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = bundle.manifest.to_json().replace('"num_layers": 2', '"num_layers": 4000000000')
    monkeypatch.setattr(Manifest, "model_validate_json", None)
    with pytest.raises(BundleError, match="digest"):
        Manifest.from_json(text, "manifest.json")


def test_the_manifest_contains_no_path_of_this_machine(
    bundle: EngineBundle, tmp_path: Path
) -> None:
    assert str(tmp_path) not in bundle.manifest.to_json()


def test_engines_are_grouped_by_kind(bundle: EngineBundle) -> None:
    manifest = bundle.manifest
    assert (manifest.embed.name, manifest.head.name) == ("embed", "head")
    assert [engine.name for engine in manifest.layers] == ["layer_000", "layer_001"]


@pytest.mark.parametrize("path", ["", "/a", "a/../..", "..", "a\\b"])
def test_a_path_that_leaves_the_bundle_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="leaves the bundle"):
        FileRecord(path=path, size=0, sha256="0" * 64)


def test_the_published_schema_is_that_of_the_manifest_model() -> None:
    """To update it: ``json.dumps(Manifest.model_json_schema(), indent=2, sort_keys=True)``."""
    published = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    assert json.loads(published.read_text()) == Manifest.model_json_schema()
