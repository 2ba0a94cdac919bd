from __future__ import annotations

import pytest
from hollow_bundles import hollow_manifest

from skipdec.exporter.comparison.inputs import random_calls


@pytest.mark.parametrize("positions", [1, 2, 40])
def test_calls_have_tokens_and_stay_within_the_models_positions(positions: int) -> None:
    manifest = hollow_manifest(2)
    model = manifest.model.model_copy(update={"max_seq_len": positions})
    manifest = manifest.model_copy(update={"model": model})
    calls = random_calls(manifest.embed, (manifest,), 0)
    assert len(calls) == min(positions, 2)
    assert all(call.num_tokens > 0 and call.positions <= positions for call in calls)
