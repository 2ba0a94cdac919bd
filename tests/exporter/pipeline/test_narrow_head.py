"""A narrow head scores the first tokens of the vocabulary on the head's own bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fixture_types import Exported
from packed_weights import FOREIGN, PACKED, named

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.kernels.formats import uncut_head
from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import EngineSpec, PrecisionSpec, TensorRole
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.graphs.narrow import packed_head
from skipdec.exporter.verification.calls import SessionCalls

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")


def head_logits(bundle: EngineBundle, spec: EngineSpec, rows: int) -> np.ndarray:
    calls = SessionCalls(OrtBackend(1).load(bundle, spec))
    width = int(spec.tensor(TensorRole.HIDDEN_STATES).shape[-1])
    states = np.random.default_rng(3).standard_normal((1, rows, width)).astype(np.float32)
    return calls.head(states, np.arange(rows))


@pytest.mark.parametrize("options", PACKED, ids=named)
@pytest.mark.parametrize(("structure", "tokens"), [("no_bias", 256), ("untied", 64)])
def test_a_narrow_head_gives_the_bits_of_the_first_tokens(
    structure: str, tokens: int, options: dict[str, Any], exported: Exported
) -> None:
    path = exported(structure, kernels="skipdec", draft_head=tokens, **options)
    bundle = EngineBundle.open(path)
    draft = bundle.manifest.draft_head
    assert draft is not None
    assert bundle.manifest.trained_draft is None
    for rows in (1, 2, 7, 40):
        narrow = head_logits(bundle, draft.engine, rows)
        assert narrow.shape == (rows, tokens)
        whole = np.ascontiguousarray(head_logits(bundle, bundle.manifest.head, rows)[:, :tokens])
        assert narrow.tobytes() == whole.tobytes(), f"{rows} rows"
    assert draft.engine.weights == bundle.manifest.head.weights
    assert draft.engine.step_bytes < bundle.manifest.head.step_bytes


@pytest.mark.parametrize("options", [*PACKED, FOREIGN], ids=named)
def test_only_a_packed_head_can_be_cut(options: dict[str, Any]) -> None:
    precision = ExportConfig(model="m", **options).precision()
    assert (uncut_head(precision) is None) == (packed_head(precision) is not None)


def test_an_unsupported_block_size_is_refused_with_the_allowed_sizes() -> None:
    precision = PrecisionSpec(head_quantize="int4", block_size=16, accuracy_level=4)
    reason = uncut_head(precision)
    assert reason is not None
    assert reason.endswith("choose a block size of 32, 64 or 128 and accuracy level 4")
