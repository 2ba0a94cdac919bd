"""Python and libskipdec agree on bundles, whatever was changed in their documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attack.readers import DOCUMENTS, KINDS, OPEN, NativeReader, compare, python_verdict
from bundle_documents import Edit, add_drafts, add_ngrams, edit, reseal

# An edit of a document, and a part of libskipdec's error message.
MANIFEST: tuple[tuple[Edit, str], ...] = (
    (lambda file: file.update(format_version=99), "has format version 99"),
    (lambda file: file.pop("format_version"), "has format version"),
    (lambda file: file.pop("model"), "model: "),
    (lambda file: file.pop("engines"), "engines: "),
    (lambda file: file.pop("precision"), "precision: "),
    (lambda file: file.pop("target"), "target: "),
    (lambda file: file["model"].pop("num_layers"), "model.num_layers: "),
    (lambda file: file["model"].update(num_layers=0), "model.num_layers: is 0"),
    (lambda file: file["model"].update(vocab_size=2**25), "model.vocab_size: is 33554432"),
    (lambda file: file["engines"].pop(), "engines"),
    (lambda file: file["engines"][1].update(kind="tail"), "engines.1.kind: "),
    (lambda file: file["files"][0].update(path="../x"), "files.0.path: "),
    (lambda file: file["files"].append(file["files"][0]), " twice"),
    (lambda file: file["files"][0].update(size=1), "bytes; expected 1"),
    (lambda file: file["files"][0].update(sha256="0" * 64), "has SHA-256"),
    (lambda file: file["precision"].update(dtype="float8"), "precision.dtype: "),
    (lambda file: file.update(kernels="other"), "kernels: "),
    (lambda file: file.update(prompt_template="x"), "prompt_template: "),
    (lambda file: file.update(tokenizer="other.json"), "other.json"),
    (lambda file: file.update(ngrams="other.json"), "ngrams"),
    (lambda file: file["engines"][1].update(step_bytes=True), ""),
    (lambda file: file["engines"][1].update(step_bytes="8"), ""),
    (lambda file: file["model"].update(eos_token_id=2.0), ""),
    (lambda file: file["model"].update(ffn_dim=2**64), ""),
    (lambda file: file["model"].update(ffn_dim=float("nan")), ""),
    (lambda file: file["engines"][1].update(weights=None), ""),
    (lambda file: file.update(canonical=None), ""),
    (lambda file: file.update(chat_template={"path": "other.jinja"}), ""),
    (lambda file: file.update(chat_template={"bos_token": "<s>"}), ""),
    (lambda file: file.update(chat_template="tokenizer.json"), ""),
    (
        lambda file: file.update(
            chat_template={"path": "tokenizer.json", "special_tokens": {"bos_token": 5}}
        ),
        "",
    ),
    (
        lambda file: file.update(
            chat_template={"path": "tokenizer.json", "special_tokens": {"additional": ["a", 5]}}
        ),
        "",
    ),
    (lambda file: file["model"].update(end_token_ids=[3, 2]), ""),
    (lambda file: file["model"].update(end_token_ids=[2]), ""),
    (lambda file: file["model"].update(end_token_ids=[2, 5, 5]), ""),
    (lambda file: file["model"].update(end_token_ids=[2, 300]), ""),
    (lambda file: file["model"].update(end_token_ids=None), ""),
    (lambda file: file["model"].update(sampling_defaults={"top_p": 0}), ""),
    (lambda file: file["model"].update(sampling_defaults={"temperature": -0.5}), ""),
    (lambda file: file["model"].update(sampling_defaults={"top_k": 2.0}), ""),
    (lambda file: file["model"].update(sampling_defaults={"min_p": True}), ""),
    (lambda file: file["model"].update(sampling_defaults=[]), ""),
)
DRAFTS: tuple[tuple[Edit, str], ...] = (
    (lambda file: file["trained_draft"].update(reads=[0, 3, 6]), "trained_draft.reads"),
    (lambda file: file["trained_draft"].update(reads=[3, 6]), "trained_draft.reads"),
    (lambda file: file["trained_draft"].update(reads=[3, 2, 6]), "states after 3, 2, 6 layers"),
    (lambda file: file["trained_draft"].update(reads=[2, 3, 7]), "states after 2, 3, 7 layers"),
    (lambda file: file["trained_draft"].update(token_ids=[]), "trained_draft.token_ids"),
    (lambda file: file["trained_draft"].update(token_ids=[5, 5]), "has 2 token_ids"),
    (lambda file: file["trained_draft"].update(token_ids=[5, 300]), "has 2 token_ids"),
    (lambda file: file["trained_draft"].update(token_ids=[5, 9]), "engine head_trained: logits is"),
    (lambda file: file["trained_draft"].pop("entry"), "trained_draft.entry: "),
    (lambda file: file["trained_draft"]["layer"].update(name="layer_001"), "is engine layer_001"),
    (lambda file: file["trained_draft"]["layer"].update(graph="other.onnx"), "other.onnx"),
    (
        lambda file: file["trained_draft"]["states"]["inputs"][0]["shape"].__setitem__(2, 32),
        "engine states_draft: states is ",
    ),
    (lambda file: file["draft_head"].update(tokens=300), "draft_head has 300 tokens"),
    (lambda file: file["draft_head"].update(tokens=128), "engine head_draft: logits is "),
    (
        lambda file: file["draft_head"]["engine"].update(weights=["tokenizer.json"]),
        "draft_head reads tokenizer.json",
    ),
)
SCHEDULE: tuple[tuple[Edit, str], ...] = (
    (lambda file: file["schedule"].update(horizon=0), "horizon"),
    (lambda file: file["schedule"].update(decay="other"), "decay"),
    (lambda file: file.pop("schedule"), "write it with 'skipdec schedule set'"),
    (lambda file: file.update(schedule=[]), "schedule: is an array; allowed: an object"),
    (lambda file: file.update(plan={}), "plan: is unknown"),
    (lambda file: file["schedule"].update(num_layers=7), "schedule: is for 7 layers"),
    (lambda file: file["schedule"].update(power=2), ""),
)
TOKENIZER: tuple[tuple[Edit, str], ...] = (
    (lambda file: file["model"]["vocab"].update(doubled=70), ""),
    (lambda file: file["added_tokens"].append(file["added_tokens"][0]), ""),
    (lambda file: file["decoder"].pop("trim_offsets"), ""),
    (lambda file: file["pre_tokenizer"].update(type="Other"), ""),
    (lambda file: file.update(other=1), ""),
)
# A place in the manifest, its new value, and a part of libskipdec's error message.
PLACES: tuple[tuple[str, Any, str], ...] = (
    ("format_version", "3", 'has format version "3"'),
    ("model/num_layers", 4097, "allowed: 1 to 4096"),
    ("model/num_layers", 3, "engines: has 8 entries; expected: 5"),
    ("model/num_layers", 2.0, "model.num_layers: is 2.0"),
    ("model/num_layers", 2**64 - 1, "model.num_layers: is 18446744073709551615"),
    ("model/hidden_size", 1 << 21, "allowed: 1 to 1048576"),
    ("model/max_seq_len", None, "model.max_seq_len: is missing"),
    ("model/num_heads", 4096, "model.num_heads: is 4096; allowed: 1 to hidden_size"),
    ("model/extra", [], "model.extra: is an array"),
    ("model/eos_token_id", True, "model.eos_token_id: is true"),
    ("model/eos_token_id", -2, "model.eos_token_id: is -2"),
    ("model/eos_token_id", 300, "model.eos_token_id: is 300"),
    ("precision/quantize", "int2", 'precision.quantize: is "int2"'),
    ("precision/activation_ranges", "00", "allowed: 64 hexadecimal digits"),
    ("engines", 3, "engines: is 3; allowed: an array"),
    ("engines/1/name", "layer_1", "expected: layer_000"),
    ("engines/1/kind", "head", "expected: layer_000"),
    ("engines/1/layer_index", 1, "expected: layer_000"),
    ("engines/0/layer_index", 0, "expected: embed"),
    *(
        ("engines/0/graph", path, "allowed: a path that stays in the bundle")
        for path in ("../../etc/passwd", "/etc/passwd", "engines//a", "./a", "a\\b", "a\0", "")
    ),
    ("engines/0/graph", "other.onnx", "engine embed: names other.onnx, not listed in files"),
    ("engines/1/weights/0", "other", "engine layer_000: names other, not listed in files"),
    ("engines/1/step_bytes", -1, "engines.1.step_bytes: is -1"),
    ("engines/1/inputs/0/dtype", "float16", "hidden_states is float16; expected float32"),
    ("engines/1/inputs/0/dtype", "complex64", 'engines.1.inputs.0.dtype: is "complex64"'),
    ("engines/1/inputs/0/shape/2", 9, "is (a symbol, a symbol, 9); expected"),
    ("engines/1/inputs/0/shape/2", "E", "hidden_states is (a symbol, a symbol, a symbol)"),
    ("engines/1/inputs/0/shape/2", 0, "engines.1.inputs.0.shape: is 0"),
    ("engines/1/inputs/0/shape", ["B", "S"], "hidden_states is (a symbol, a symbol)"),
    ("engines/1/inputs/0/role", "logits", "engine layer_000 has the inputs"),
    ("engines/1/inputs/1/role", "past_value", "engine layer_000 has the inputs"),
    ("engines/1/inputs/1/name", "past_value", "engine layer_000 has the inputs"),
    ("engines/-1/outputs/0/shape/1", 33, "logits is (a symbol, 33); expected (a symbol, "),
    ("engines/1/inputs", [], "engine layer_000 has the inputs none"),
    ("build", {"version": "10"}, "build.compute_capability: is missing"),
    ("tokenizer", "../tokenizer.json", 'tokenizer: is "../tokenizer.json"'),
    ("prompt_template", "{prompt}{prompt}", "allowed: a text with {prompt} once"),
    ("files/0/size", -1, "files.0.size: is -1"),
    ("files/0/sha256", "G" * 64, "allowed: 64 hexadecimal digits"),
    ("source", {"a": 1}, "source.a: is 1; allowed: a text"),
    ("candidates", {"name": "candidates"}, "candidates.kind: is missing"),
    (
        "candidates",
        {
            "name": "head",
            "kind": "head",
            "graph": "a",
            "inputs": [],
            "outputs": [],
            "step_bytes": 0,
        },
        "candidates: is engine head, a head without layer_index; expected: candidates, a",
    ),
)
PLACES_OF_DRAFTS: tuple[tuple[str, Any, str], ...] = (
    ("trained_draft", 1, "trained_draft"),
    ("trained_draft/layer/layer_index", 1, "expected: layer_draft, a layer without layer_index"),
    ("trained_draft/entry/kind", "states", "is engine entry_draft, a states without"),
    (
        "trained_draft/layer/inputs/0/dtype",
        "float16",
        "engine layer_draft: hidden_states is float16",
    ),
    ("draft_head/engine/kind", "layer", "is engine head_draft, a layer without"),
)


def at(place: str, value: object) -> Edit:
    """Return the edit that puts ``value`` at ``place``."""

    def put(document: Any) -> None:  # noqa: ANN401
        *path, last = (int(key) if key.lstrip("-").isdigit() else key for key in place.split("/"))
        for key in path:
            document = document[key]
        document[last] = value

    return put


DAMAGE = (
    *(("manifest.json", False, *case) for case in MANIFEST),
    *(("manifest.json", True, *case) for case in DRAFTS),
    *(("manifest.json", False, at(place, value), words) for place, value, words in PLACES),
    *(("manifest.json", True, at(place, value), words) for place, value, words in PLACES_OF_DRAFTS),
    *(("schedule.json", False, *case) for case in SCHEDULE),
    *(("tokenizer.json", False, *case) for case in TOKENIZER),
)


@pytest.mark.parametrize("has_drafts", [False, True])
def test_both_open_an_intact_bundle(reader: NativeReader, bundle: Path, has_drafts: bool) -> None:
    if has_drafts:
        edit(bundle, "manifest.json", add_drafts)
    assert python_verdict(bundle) == reader.verdict(bundle) == OPEN


@pytest.mark.parametrize(("name", "has_drafts", "change", "words"), DAMAGE)
def test_both_refuse_a_damaged_document(
    reader: NativeReader, bundle: Path, name: str, has_drafts: bool, change: Edit, words: str
) -> None:
    if has_drafts:
        edit(bundle, "manifest.json", add_drafts)
    edit(bundle, name, change)
    assert_both_refuse(reader, bundle, words)


def test_both_refuse_a_tokenizer_above_the_size_limit_unread(
    reader: NativeReader, bundle: Path
) -> None:
    path = bundle / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" " * (64 << 20))
    reseal(bundle, path.name)
    assert_both_refuse(reader, bundle, "is larger than 67,108,864 bytes, the limit")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "has no list ngrams"),
        ('{"ngrams": {}}', "has no list ngrams"),
        (json.dumps({"ngrams": [[1, 2, 2, 2]] * 65537}), "up to 65,536 n-grams"),
        ('{"ngrams": [[1, 2, 2, 2], [1, 3, 2, 2]]}', "ngrams.1 is"),
        *(
            (json.dumps({"ngrams": [row]}), "ngrams.0 is")
            for row in (
                *([1, 2, 2], [1, 2, 3, 4, 5, 2, 2], [-1, 2, 2, 2], [1, 10**6, 2, 2]),
                *([1, 2, 0, 2], [1, 2, 3, 2], [1, 2, 2, 2**31], [1, 2.0, 2, 2], [1, True, 2, 2], 7),
            )
        ),
    ],
)
def test_both_refuse_invalid_ngrams(
    reader: NativeReader, bundle: Path, content: str, words: str
) -> None:
    add_ngrams(bundle, content)
    assert_both_refuse(reader, bundle, words)


def test_both_refuse_ngrams_above_the_size_limit_unread(reader: NativeReader, bundle: Path) -> None:
    add_ngrams(bundle, '{"ngrams": []}')
    assert python_verdict(bundle) == reader.verdict(bundle) == OPEN
    (bundle / "ngrams.json").write_bytes(b" " * (6 << 20))
    reseal(bundle, "ngrams.json")
    assert_both_refuse(reader, bundle, "is larger than 5,242,880 bytes, the limit")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_both_refuse_a_missing_or_truncated_document(
    reader: NativeReader, bundle: Path, name: str
) -> None:
    (bundle / name).write_text("{")
    assert_both_refuse(reader, bundle, name)
    (bundle / name).unlink()
    assert_both_refuse(reader, bundle, name)


def test_both_refuse_a_missing_bundle(reader: NativeReader, tmp_path: Path) -> None:
    assert_both_refuse(reader, tmp_path / "bundle", str(tmp_path))
    assert_both_refuse(reader, tmp_path, str(tmp_path))


@pytest.mark.parametrize("name", ["manifest.json", "schedule.json"])
def test_both_refuse_a_reformatted_document(reader: NativeReader, bundle: Path, name: str) -> None:
    document = json.loads((bundle / name).read_bytes())
    (bundle / name).write_text(json.dumps(document, indent=1))
    assert_both_refuse(reader, bundle, name)


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_both_agree_on_tampered_documents(
    reader: NativeReader, text_bundle: Path, tmp_path: Path, kind: str
) -> None:
    verdicts = list(compare(text_bundle, tmp_path, reader, range(40), (kind,)))
    assert not [str(each) for each in verdicts if not each.agree]
    assert any(each.python != OPEN for each in verdicts)


def assert_both_refuse(reader: NativeReader, bundle: Path, words: str) -> None:
    python, native = python_verdict(bundle), reader.verdict(bundle)
    assert python != OPEN
    assert native.partition(":")[0] == python.partition(":")[0], (native, python)
    assert words in native
