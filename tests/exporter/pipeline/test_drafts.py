"""A bundle may have a draft layer, and options of drafts are checked before any work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from draft_layers import change_facts, write_draft_layer
from fixture_types import Checkpoints, Exported
from packed_weights import FOREIGN, PACKED, named
from safetensors.numpy import load_file, save_file
from verified_bundles import verified

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import CheckpointError, SkipDecError, UsageError, VerificationError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.checkpoint.draft_layer import FACTS_NAME, TENSORS_NAME
from skipdec.exporter.config import BuildConfig, ExportConfig
from skipdec.exporter.pipeline.build import plan_build
from skipdec.exporter.pipeline.exporting import export, plan_export

STRUCTURES = ("pre_norm", "post_norm", "no_bias", "untied", "no_final_norm")
UNPACKED: tuple[dict[str, Any], ...] = (
    {"kernels": "onnxruntime", **FOREIGN},
    {"kernels": "onnxruntime", "quantize": "int8-block", "accuracy_level": 0},
    {"kernels": "onnxruntime", "quantize": "int8"},
)
PARTS = ["states_draft", "entry_draft", "layer_draft", "head_trained"]
needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")
pytestmark = needs_kernels


@pytest.fixture(scope="session")
def draft_of(
    checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return ``draft_of(structure, reads)``: a read-only directory of a draft layer."""

    @cache
    def write(structure: str, reads: tuple[int, int, int] | None = None) -> Path:
        directory = tmp_path_factory.mktemp("draft")
        return write_draft_layer(directory, str(checkpoint(structure)), reads)

    return write


@pytest.fixture(scope="session")
def drafted(exported: Exported, draft_of: Callable[..., Path]) -> Callable[..., Path]:
    """Return ``drafted(structure, **options)``: a read-only bundle with a draft layer."""

    def export_once(structure: str, **options: object) -> Path:
        chosen = {"kernels": "skipdec"} | options
        return exported(structure, draft_layer=draft_of(structure), **chosen)

    return export_once


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        *zip(STRUCTURES, PACKED * 2, strict=False),
        *(("pre_norm", options) for options in PACKED[1:]),
        *(("post_norm", options) for options in UNPACKED),
    ],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_drafts_of_all_structures_and_precisions_pass_verification(
    structure: str,
    options: dict[str, Any],
    drafted: Callable[..., Path],
    draft_of: Callable[..., Path],
    checkpoint: Checkpoints,
) -> None:
    bundle = drafted(structure, **options)
    report = verified(bundle, checkpoint(structure), draft_layer=draft_of(structure))
    assert report.problems == []
    assert report.notes == ()
    assert [check.engine for check in report.engines[9:]] == PARTS
    manifest = EngineBundle.open(bundle).manifest
    draft = manifest.trained_draft
    assert draft is not None
    assert draft.reads == (2, 3, 6)
    assert draft.token_ids == tuple(range(0, manifest.model.vocab_size, 2))
    assert draft.layer.inputs == manifest.layers[0].inputs
    assert draft.head.inputs == manifest.head.inputs
    width = manifest.model.hidden_size
    joined = (draft.states.inputs[0].shape[-1], draft.entry.inputs[0].shape[-1])
    assert joined == (3 * width, 2 * width)


@pytest.mark.parametrize(("dtype", "item_size"), [("float32", 4), ("float16", 2)])
def test_a_draft_layer_reads_int8_blocks_beside_float_layers(
    dtype: str, item_size: int, drafted: Callable[..., Path]
) -> None:
    manifest = EngineBundle.open(drafted("untied", dtype=dtype)).manifest
    assert manifest.precision.quantize == "none"
    draft = manifest.trained_draft
    assert draft is not None
    ratio = manifest.layers[0].step_bytes / draft.layer.step_bytes
    assert 0.8 * item_size < ratio < item_size  # a scale per 64 weights, norms and biases are left


def test_drafts_only_add_files_and_fields_to_a_bundle(
    drafted: Callable[..., Path], exported: Exported
) -> None:
    plain = EngineBundle.open(exported("pre_norm", kernels="skipdec", quantize="int8")).manifest
    document = json.loads(plain.to_json())
    assert not [key for key in document if "draft" in key]
    with_drafts = EngineBundle.open(drafted("pre_norm", quantize="int8")).manifest
    added = [record for record in with_drafts.files if record not in plain.files]
    files = {f"{part}.{suffix}" for part in PARTS for suffix in ("onnx", "weights")}
    assert {Path(record.path).name for record in added} == files
    left = {"trained_draft": None, "files": plain.files}
    assert with_drafts.model_copy(update=left).with_digest() == plain


def test_equal_input_gives_equal_bundles(
    drafted: Callable[..., Path],
    draft_of: Callable[..., Path],
    checkpoint: Checkpoints,
    tmp_path: Path,
) -> None:
    first = EngineBundle.open(drafted("pre_norm", quantize="int8")).manifest
    config = ExportConfig(
        model=str(checkpoint("pre_norm")),
        draft_layer=draft_of("pre_norm"),
        quantize="int8",
        kernels="skipdec",
        output=tmp_path / "again",
        verify=False,
        jobs=3,
    )
    report = export(config)
    assert report.digest == first.digest
    assert [engine.name for engine in report.engines[-4:]] == PARTS


def truncate(directory: Path) -> None:
    path = directory / TENSORS_NAME
    path.write_bytes(path.read_bytes()[:-40])


def change_tensors(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(directory / TENSORS_NAME)
    change(tensors)
    save_file(tensors, directory / TENSORS_NAME)


def facts(changes: dict[str, Any]) -> Callable[[Path], object]:
    """Return a function that changes the facts in a directory."""
    return lambda path: change_facts(path, changes)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no facts": (lambda path: (path / FACTS_NAME).unlink(), "has no draft_layer.json; allowed"),
    "no tensors": (lambda path: (path / TENSORS_NAME).unlink(), "has no draft_layer.safetensors"),
    "truncated": (truncate, "the file is truncated"),
    "no JSON": (lambda path: (path / FACTS_NAME).write_text("{"), "is not JSON"),
    "another format": (facts({"format": 1}), "format is 1; input should be 2"),
    "no states": (facts({"reads": None}), "reads is None; input should be"),
    "two states": (facts({"reads": [1, 6]}), "at least 3 items"),
    "embeddings as a state": (
        facts({"reads": [0, 3, 6]}),
        "reads states after 0, 3, 6 layers; allowed: ascending, 1 to 6",
    ),
    "a state above all": (facts({"reads": [1, 3, 7]}), "1, 3, 7 layers"),
    "states in disorder": (facts({"reads": [3, 1, 6]}), "3, 1, 6 layers"),
    "tokens in disorder": (
        facts({"token_ids": [1, 0, *range(2, 66)]}),
        "has token_ids that are not ascending and below the vocabulary's 131",
    ),
    "a token too many": (facts({"token_ids": [*range(65), 131]}), "has token_ids that are not"),
    "fewer tokens than rows": (
        facts({"token_ids": [*range(65)]}),
        r"head.lm_head.weight is \[66, 32\]; expected \[65, 32\]",
    ),
    "another width": (
        facts({"model.hidden_size": 64}),
        "was trained for a model of hidden_size 64; pre_norm has 32",
    ),
    "another ffn": (facts({"model.ffn_dim": 128}), "was trained for a model of ffn_dim 128"),
    "other weights": (
        facts({"model.sha256": "0" * 64}),
        "was trained for weights of SHA-256 000000000000…; those of pre_norm have ",
    ),
    "a tensor less": (
        lambda path: change_tensors(path, lambda tensors: tensors.pop("layer.fc1.weight")),
        "layer.fc1.weight is missing from draft_layer.safetensors",
    ),
    "a tensor more": (
        lambda path: change_tensors(path, lambda tensors: tensors.update(other=np.ones(2, "f4"))),
        "other is unexpected",
    ),
    "another shape": (
        lambda path: change_tensors(
            path, lambda tensors: tensors.update({"layer.fc1.bias": np.ones(2, "f4")})
        ),
        r"layer.fc1.bias is \[2\]; expected \[96\]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_draft_layer_is_refused_before_any_work(
    name: str, checkpoint: Checkpoints, draft_of: Callable[..., Path], tmp_path: Path
) -> None:
    model = str(checkpoint("pre_norm"))
    directory = shutil.copytree(draft_of("pre_norm"), tmp_path / "draft")
    spoil, words = BAD[name]
    spoil(directory)
    config = ExportConfig(
        model=model, draft_layer=directory, output=tmp_path / "out", quantize="int8"
    )
    with pytest.raises((UsageError, CheckpointError), match=words):
        export(config)
    assert not list(tmp_path.glob("*out*"))


def test_the_draft_layer_of_another_model_is_refused(
    checkpoint: Checkpoints, draft_of: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(checkpoint("pre_norm"), tmp_path / "other")
    file = tmp_path / "other" / "model.safetensors"
    save_file({name: array + 1 for name, array in load_file(file).items()}, file)
    config = ExportConfig(model=str(tmp_path / "other"), draft_layer=draft_of("pre_norm"))
    with pytest.raises(UsageError, match="was trained for weights of SHA-256"):
        plan_export(config)
    config = ExportConfig(model=str(checkpoint("untied")), draft_layer=draft_of("pre_norm"))
    with pytest.raises(UsageError, match="hidden_size 32; untied has 64") as caught:
        plan_export(config)
    assert "expected" not in str(caught.value)  # shapes of tensors follow from the sizes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_head": 100}, "draft_head is 100; allowed: multiples of 64"),
        ({"draft_head": -64}, "draft_head is -64"),
        ({"draft_head": 192}, "draft_head .* is 192; allowed: multiples of 64 up to 128"),
        ({"draft_head": 64, **FOREIGN}, "its weights are int4 of ONNX Runtime's operators"),
        ({"draft_head": 64, "kernels": "onnxruntime"}, "only the kernels skipdec read a part"),
        ({"draft_layer": Path("d"), "target": "tensorrt"}, "drafts run on CPUs only"),
        ({"draft": "own", "target": "tensorrt"}, "drafts run on CPUs only"),
        ({"draft": "onw"}, "'onw' is unknown; did you mean 'own'"),
        ({"draft": "auto"}, "which stands for the text given here"),
        ({"draft": "trained"}, "trained needs a draft layer"),
        ({"draft": "ends:6"}, "ends:6 runs 6 layers of 6"),
        ({"draft": "own", **FOREIGN}, "needs products of skipdec's kernels: those of int4"),
        ({"draft_layer": Path("d")}, "d .* has no draft_layer.json and no draft_layer.safetensors"),
    ],
)
def test_impossible_options_are_refused(
    options: dict[str, Any], words: str, checkpoint: Checkpoints
) -> None:
    chosen = {"quantize": "int8"} | options
    with pytest.raises(SkipDecError, match=words):
        plan_export(ExportConfig(model=str(checkpoint("pre_norm")), **chosen))


def test_planned_sizes_count_the_draft_layer(
    drafted: Callable[..., Path], draft_of: Callable[..., Path], checkpoint: Checkpoints
) -> None:
    config = ExportConfig(
        model=str(checkpoint("pre_norm")), draft_layer=draft_of("pre_norm"), quantize="int8"
    )
    plan = plan_export(config)
    manifest = EngineBundle.open(drafted("pre_norm", quantize="int8")).manifest
    assert [engine.name for engine in plan.engines[-5:]] == ["candidates", *PARTS]
    sizes = {engine.name: engine.size for engine in plan.engines}
    assert sizes["layer_draft"] == sizes["layer_001"]
    assert sizes["head_trained"] < sizes["head"]
    assert plan.size >= sum(record.size for record in manifest.files)


def test_verification_finds_other_weights_in_the_draft_layer(
    drafted: Callable[..., Path], checkpoint: Checkpoints, tmp_path: Path
) -> None:
    model = checkpoint("pre_norm")
    other = write_draft_layer(tmp_path, str(model), seed=8)
    bundle = drafted("pre_norm", quantize="int8")
    problems = verified(bundle, model, draft_layer=other).problems
    assert problems
    assert all(
        problem.startswith(tuple(f"engine {part}: " for part in PARTS)) for problem in problems
    )


def test_verification_reports_that_a_draft_layer_was_not_compared(
    drafted: Callable[..., Path], exported: Exported, checkpoint: Checkpoints
) -> None:
    model, bundle = checkpoint("pre_norm"), drafted("pre_norm", quantize="int8")
    report = verified(bundle, model)
    assert report.verdict == "passed, in part"
    assert "pass the directory that it was exported from as --draft-layer" in report.notes[0]
    plain = exported("pre_norm", kernels="skipdec", quantize="int8")
    with pytest.raises(VerificationError, match="has no draft layer; leave --draft-layer out"):
        verified(plain, model, draft_layer=bundle)


def test_verification_refuses_a_layer_that_reads_other_states(
    drafted: Callable[..., Path], draft_of: Callable[..., Path], checkpoint: Checkpoints
) -> None:
    bundle, other = drafted("pre_norm", quantize="int8"), draft_of("pre_norm", (1, 3, 6))
    with pytest.raises(VerificationError, match="reads other states, or scores other tokens, than"):
        verified(bundle, checkpoint("pre_norm"), draft_layer=other)


def test_a_build_omits_and_reports_drafts(
    drafted: Callable[..., Path], exported: Exported, tmp_path: Path
) -> None:
    options = {"kernels": "skipdec", "quantize": "int8", "keep_canonical": True}
    whole = drafted("pre_norm", draft="own+trained", **options)
    recommending = exported("pre_norm", draft="own+ends:3", **options)
    parts = ["draft own+trained", *PARTS], ["draft own+ends:3"]
    for bundle, left_out in zip((whole, recommending), parts, strict=True):
        chosen = {"target": "onnxruntime", "kernels": "onnxruntime"}
        plan = plan_build(BuildConfig(bundle=bundle, output=tmp_path / "b", **chosen))
        assert [engine.name for engine in plan.engines[-2:]] == ["head", "candidates"]
        (warning,) = plan.warnings
        assert warning.startswith(f"left out: {', '.join(left_out)};")


def command(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect_shows_drafts(drafted: Callable[..., Path]) -> None:
    whole, headless = drafted("untied", quantize="int8", draft_head=64), drafted("untied")
    shown = command("inspect", str(whole), "--show", "engines")
    assert "for drafts: a layer that reads states after 2, 3, 6 layers" in shown
    assert "a head of the first 64 of 131 tokens" in shown
    assert "layer_draft" in shown
    assert "of the first" not in command("inspect", str(headless))
    document = json.loads(command("inspect", str(whole), "--json", "--show", "engines"))
    assert document["draft_engines"]["reads"] == [2, 3, 6]
    assert document["draft_engines"]["head_tokens"] == 64
    assert document["engines"][-1]["weights_bytes"] == 0


def test_a_dry_run_shows_drafts(checkpoint: Checkpoints, draft_of: Callable[..., Path]) -> None:
    model, draft = str(checkpoint("pre_norm")), str(draft_of("pre_norm"))
    options = ("--quantize", "int8", "--draft-layer", draft, "--draft", "Own + trained")
    shown = command("export", model, *options, "--dry-run")
    assert "own+trained" in shown
    assert "layer_draft" in shown
    assert "a layer that reads states after 2, 3, 6 layers, for 66 tokens" in shown
