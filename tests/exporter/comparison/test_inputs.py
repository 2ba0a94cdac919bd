from __future__ import annotations

from pathlib import Path

import pytest
from hollow_bundles import hollow_manifest, write_hollow_bundle

from skipdec import CompareConfig
from skipdec.exporter.comparison.inputs import random_calls
from skipdec.exporter.comparison.sides import open_sides
from skipdec.runtime.schedule import ExitSchedule


def test_both_bundles_may_be_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(2))
    monkeypatch.setenv("HOME", str(tmp_path))
    sides = open_sides(CompareConfig(bundle=Path("~/bundle"), against="~/bundle"))
    assert [side.bundle.path for side in sides] == 2 * [tmp_path / "bundle"]


@pytest.mark.parametrize("positions", [1, 2, 40])
def test_random_calls_fit_the_positions_of_both_bundles(positions: int) -> None:
    manifest = hollow_manifest(2)
    model = manifest.model.model_copy(update={"max_seq_len": positions})
    shorter = manifest.model_copy(update={"model": model})
    calls = random_calls(manifest.embed, (manifest, shorter), 0)
    assert len(calls) == min(positions, 2)
    assert all(call.num_tokens > 0 and call.positions <= positions for call in calls)
