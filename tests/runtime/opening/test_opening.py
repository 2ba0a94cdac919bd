"""Only a complete bundle that matches its manifest opens; anything else is an error."""

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
    """Return the same engines with other weights."""
    (tmp_path / "new").mkdir()
    bundle = copy_bundle(exported(STRUCTURE), tmp_path / "new")
    edit_parameters(bundle, "head", ("final_layer_norm.weight",), lambda values: (-values,))
    return bundle


def run(generator: Generator) -> tuple[str, tuple[int, ...]]:
    """Return the reported digest and tokens."""
    with generator:
        (result,) = generator.generate([[5, 9, 11]], GREEDY)
        return generator.bundle.manifest.digest, result.outputs[0].token_ids


def exchange(name: Path, other: Path) -> None:
    """Swap two directories; kernels without renameat2 have one more moment without a name."""
    name.rename(name.with_name("moved"))
    other.rename(name)


def replace_for_good(name: Path, other: Path) -> None:
    bundle_place(name).take(other)


def test_only_drafts_of_ngrams_parse_those_of_the_bundle(old: Path) -> None:
    """It takes tens of milliseconds; the file is read at opening, for it may be gone later."""
    add_ngrams(old, '{"ngrams": {}}')
    with Generator.open(old, threads=1) as generator:
        shutil.rmtree(old)
        assert generator.generate([[5, 9, 11]], GREEDY, draft="lookup,exact=no")
        with pytest.raises(BundleError, match="has no list ngrams"):
            generator.generate([[5, 9, 11]], GREEDY, draft="own,exact=no")


@pytest.mark.parametrize("moment", ["embed", "head", "layer_003"])
@pytest.mark.parametrize("swap", [exchange, replace_for_good])
def test_a_bundle_that_is_replaced_while_engines_load_runs_whole(
    old: Path,
    new: Path,
    monkeypatch: pytest.MonkeyPatch,
    swap: Callable[[Path, Path], None],
    moment: str,
) -> None:
    whole = {run(Generator.open(old)), run(Generator.open(new))}
    assert len({tokens for _, tokens in whole}) == 2
    load = OrtBackend.load

    def load_after_swap(
        self: OrtBackend, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> EngineSession:
        if spec.name == moment and new.exists():
            swap(old, new)
        return load(self, bundle, spec, bucket)

    monkeypatch.setattr(OrtBackend, "load", load_after_swap)
    assert run(Generator.open(old)) in whole
    assert not new.exists()


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_in_the_weights_is_found_while_they_are_loaded(old: Path) -> None:
    flip_a_bit(next(old.rglob("layer_002.weights")))
    with pytest.raises(BundleError, match=r"layer_002\.weights: has SHA-256"):
        Generator.open(old)
    Generator.open(old, verify="graphs").close()


def test_weights_of_canonical_engines_are_not_hashed_to_run_others(
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
def test_engines_that_are_not_what_the_runtime_needs_are_named(
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
def test_a_graph_that_onnx_runtime_refuses_is_named(
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


def test_work_that_opens_a_bundle_twice_sees_that_it_was_replaced(old: Path, new: Path) -> None:
    prepared = EngineBundle.open(old)
    prepared.check_same(EngineBundle.open(old))
    exchange(old, new)
    with pytest.raises(BundleError, match="was replaced since the work began: it had digest"):
        prepared.check_same(EngineBundle.open(old))


def test_a_constantly_changing_bundle_is_given_up(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        old.rename(old.with_name("moved"))
        old.with_name("moved").rename(old)
        raise BundleError("engine", "is missing")

    monkeypatch.setattr(OrtBackend, "load", load)
    with pytest.raises(BundleError, match="was replaced 10 times while it was opened"):
        Generator.open(old)
