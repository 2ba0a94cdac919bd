"""Engines of drafts are loaded only when a draft needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import copy_bundle

from skipdec.engines.backends import weights
from skipdec.engines.backends.ort import OrtBackend, OrtSession
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError
from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.runtime.generator import Generator
from skipdec.runtime.stitching.drafts import DraftEngines
from skipdec.runtime.stitching.host.stitcher import HostStitcher
from skipdec.runtime.stitching.loaded import load_stitcher
from skipdec.runtime.stitching.protocol import run_once
from skipdec.runtime.tokens.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")


class RecordingBackend(OrtBackend):
    """Records which engines are loaded."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(1, **options)
        self.names: list[str] = []

    def load(self, bundle: EngineBundle, spec: EngineSpec, *bucket: Any) -> OrtSession:  # noqa: ANN401
        self.names.append(spec.name)
        return super().load(bundle, spec, *bucket)


def opened(path: Path, backend: OrtBackend) -> HostStitcher:
    bundle = replace(EngineBundle.open(path), hashes_weights=True)
    stitcher = load_stitcher(bundle, backend, 2, lambda rows: rows)
    assert isinstance(stitcher, HostStitcher)
    return stitcher


def drafts_of(stitcher: HostStitcher) -> DraftEngines:
    assert stitcher.drafts is not None
    return stitcher.drafts


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # the bundle is a copy of links
    path.write_bytes(content)


def test_a_draft_loads_its_engines_once(draft_bundle: Path) -> None:
    backend = RecordingBackend()
    drafts = drafts_of(opened(draft_bundle, backend))
    assert (drafts.reads, drafts.head_tokens) == ((), 64)
    assert not [name for name in backend.names if "draft" in name or "trained" in name]
    head, trained = drafts.head, drafts.trained
    assert head is drafts.head
    assert trained == drafts.trained
    assert head is not None
    assert drafts.reads == (2, 3, 6)
    own = ["states_draft", "entry_draft", "layer_draft", "head_trained"]
    assert backend.names[-5:] == ["head_draft", *own]
    logits = np.empty((1, 64), np.float32)
    tensors = {
        TensorRole.HIDDEN_STATES: np.ones((1, 1, 32), np.float32),
        TensorRole.ROW_POSITIONS: np.zeros(1, np.int64),
        TensorRole.LOGITS: logits,
    }
    run_once(head, tensors)
    assert np.isfinite(logits).all()


def test_texts_without_drafts_need_no_draft_layer(draft_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(draft_bundle, tmp_path / "bundle")
    damage(bundle / "engines/skipdec/layer_draft.weights")
    with Generator.open(bundle, threads=1) as generator, Generator.open(draft_bundle) as undamaged:
        texts = [one.generate([[5, 6, 7]], GREEDY)[0].outputs[0] for one in (generator, undamaged)]
    assert texts[0].token_ids == texts[1].token_ids
    drafts = drafts_of(opened(bundle, OrtBackend(1)))
    with pytest.raises(BundleError, match=r"layer_draft\.weights: has SHA-256 .*; expected"):
        assert drafts.trained


def test_a_damaged_graph_of_drafts_is_refused_at_opening(
    draft_bundle: Path, tmp_path: Path
) -> None:
    bundle = copy_bundle(draft_bundle, tmp_path / "bundle")
    damage(bundle / "engines/skipdec/head_draft.onnx")
    with pytest.raises(BundleError, match=r"head_draft\.onnx: has SHA-256 .*; expected"):
        EngineBundle.open(bundle)


def test_a_bundle_without_drafts_has_no_draft_engines(exported: Callable[..., Path]) -> None:
    path = exported("pre_norm", quantize="int8", kernels="skipdec")
    assert opened(path, OrtBackend(1)).drafts is None


def test_both_heads_share_one_copy_of_their_weights(
    draft_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, copied = weights._read, list[str]()

    def counted(bundle: EngineBundle, path: str) -> weights.Array:
        copied.append(Path(path).name)
        return read(bundle, path)

    monkeypatch.setattr(weights, "_read", counted)
    backend = OrtBackend(1, weights="copied")
    drafts = drafts_of(opened(draft_bundle, backend))
    assert drafts.head is not None
    assert drafts.trained
    assert copied.count("head.weights") == 1
    assert copied.count("layer_draft.weights") == 1
    backend.close()
    assert not backend._files
