"""A bundle opens only if it is complete and matches its manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from bundle_documents import add_ngrams
from mutations import copy_bundle, edit_graph, edit_parameters

from skipdec import Generator, SamplingParams
from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.session import EngineSession
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle.place import bundle_place
from skipdec.engines.documents import document_digest
from skipdec.engines.errors import BundleError
from skipdec.engines.manifest import EngineSpec, KVBucket, Manifest

STRUCTURE = "pre_norm"
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def old(exported: Callable[..., Path], tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    return copy_bundle(exported(STRUCTURE), tmp_path / "old")


@pytest.fixture
def new(exported: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a bundle of the same engines with other weights."""
    (tmp_path / "new").mkdir()
    bundle = copy_bundle(exported(STRUCTURE), tmp_path / "new")
    edit_parameters(bundle, "head", ("final_layer_norm.weight",), lambda values: (-values,))
    return bundle


def run(generator: Generator) -> tuple[str, tuple[int, ...]]:
    """Return the reported digest and tokens."""
    with generator:
        (result,) = generator.generate([[5, 9, 11]], GREEDY)
        return generator.bundle.manifest.digest, result.outputs[0].token_ids


def swap_directories(name: Path, other: Path) -> None:
    """Replace a directory as without renameat2: its name is missing for a moment."""
    name.rename(name.with_name("moved"))
    other.rename(name)


def replace(name: Path, other: Path) -> None:
    bundle_place(name).take(other)


def test_the_bundles_ngrams_are_parsed_only_for_ngram_drafts(old: Path) -> None:
    """Parsing takes tens of milliseconds. The file may be deleted once the bundle is open."""
    add_ngrams(old, '{"ngrams": {}}')
    with Generator.open(old, threads=1) as generator:
        shutil.rmtree(old)
        assert generator.generate([[5, 9, 11]], GREEDY, draft="lookup,exact=no")
        with pytest.raises(BundleError, match="has no list ngrams"):
            generator.generate([[5, 9, 11]], GREEDY, draft="own,exact=no")


@pytest.mark.parametrize("moment", ["embed", "head", "layer_003"])
@pytest.mark.parametrize("swap", [swap_directories, replace])
def test_a_bundle_replaced_while_loading_is_never_mixed(
    old: Path,
    new: Path,
    monkeypatch: pytest.MonkeyPatch,
    swap: Callable[[Path, Path], None],
    moment: str,
) -> None:
    unmixed = {run(Generator.open(old)), run(Generator.open(new))}
    assert len({tokens for _, tokens in unmixed}) == 2
    load = OrtBackend.load

    def load_after_swap(
        self: OrtBackend, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> EngineSession:
        if spec.name == moment and new.exists():
            swap(old, new)
        return load(self, bundle, spec, bucket)

    monkeypatch.setattr(OrtBackend, "load", load_after_swap)
    assert run(Generator.open(old)) in unmixed
    assert not new.exists()


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_in_the_weights_is_found_at_loading(old: Path) -> None:
    flip_a_bit(next(old.rglob("layer_002.weights")))
    with pytest.raises(BundleError, match=r"layer_002\.weights: has SHA-256"):
        Generator.open(old)
    Generator.open(old, verify="graphs").close()


def test_unused_canonical_weights_are_not_hashed(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    kept = copy_bundle(exported(STRUCTURE, quantize="int8", keep_canonical=True), tmp_path)
    flip_a_bit(next((kept / "engines" / "canonical").glob("*.weights")))
    Generator.open(kept).close()
    with pytest.raises(BundleError, match="engines/canonical/"):
        EngineBundle.open(kept, verify="full")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)])
@pytest.mark.parametrize("name", ["manifest.json", "schedule.json", "head.onnx", "embed.weights"])
def test_special_files_never_block_opening(
    old: Path, name: str, make: Callable[[Path], object]
) -> None:
    path = next(old.rglob(name))
    path.unlink()
    make(path)
    with pytest.raises(
        BundleError, match=r"expected a regular file|symbolic links|is not a bundle"
    ):
        Generator.open(old)


def seal(bundle: Path, edit: Callable[[dict], object]) -> None:
    """Edit the manifest and recompute its digest."""
    path = bundle / "manifest.json"
    document = Manifest.from_json(path.read_bytes(), "").model_dump(mode="json", exclude={"digest"})
    edit(document)
    document["digest"] = document_digest(document)
    path.write_text(Manifest.model_validate(document).to_json())


def first_layer(document: dict) -> dict:
    return document["engines"][1]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (
            lambda d: first_layer(d)["inputs"].pop(1),
            "layer_000 has the inputs .* expected .*past_key",
        ),
        (lambda d: first_layer(d)["inputs"][1]["shape"].pop(), r"past_key is .*expected \('B'"),
        (lambda d: first_layer(d)["inputs"][1].update(dtype="float16"), "is float16; expected"),
        (lambda d: first_layer(d)["outputs"].reverse(), None),
        (lambda d: d["engines"][2]["outputs"][0].update(name="other"), "(?s)layer_001.*other"),
        (lambda d: d["model"].update(vocab_size=99), r"logits is .*expected \('R', 99\)"),
        (lambda d: d["precision"].update(dtype="bfloat16"), "expected bfloat16"),
        (
            lambda d: d["engines"][0].update(graph=d["engines"][1]["graph"]),
            "(?s)embed .*has the inputs hidden_states",
        ),
    ],
)
def test_engines_with_unexpected_inputs_or_outputs_are_named(
    old: Path, edit: Callable[[dict], object], problem: str | None
) -> None:
    seal(old, edit)
    if problem is None:
        run(Generator.open(old))
    else:
        with pytest.raises(BundleError, match=problem):
            Generator.open(old)


def rename_operator(graph: onnx.GraphProto) -> None:
    graph.node[0].op_type = "\udc80".encode(errors="surrogateescape").decode("latin-1")


def widen_input(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.shape.dim[2].dim_value = 99


@pytest.mark.parametrize("edit", [rename_operator, widen_input])
def test_a_graph_refused_by_onnx_runtime_is_named(
    old: Path, edit: Callable[[onnx.GraphProto], None]
) -> None:
    edit_graph(old, "layer_001", edit)
    with pytest.raises(BundleError, match=f"engine layer_001 .{old}/"):
        Generator.open(old)


def test_late_reads_of_a_deleted_bundle_raise(old: Path) -> None:
    bundle = EngineBundle.open(old)
    shutil.rmtree(old)
    with pytest.raises(BundleError, match="replaced since it was opened, open it again"):
        bundle.read(bundle.manifest.head.graph)


def test_reopening_detects_a_replaced_bundle(old: Path, new: Path) -> None:
    prepared = EngineBundle.open(old)
    prepared.check_same(EngineBundle.open(old))
    swap_directories(old, new)
    with pytest.raises(BundleError, match="was replaced since the work began: it had digest"):
        prepared.check_same(EngineBundle.open(old))


def test_a_constantly_replaced_bundle_is_refused(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        old.rename(old.with_name("moved"))
        old.with_name("moved").rename(old)
        raise BundleError("engine", "is missing")

    monkeypatch.setattr(OrtBackend, "load", load)
    with pytest.raises(BundleError, match="was replaced 10 times while it was opened"):
        Generator.open(old)
