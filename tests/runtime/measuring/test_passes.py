"""Costs of passes: one for each number of tokens, and measured, not estimated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec import Generator
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.drafting.policy import PassCosts
from skipdec.runtime.measuring.passes import measure_pass_costs


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
def test_passes_of_every_length_are_measured(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[tuple[int, int]] = []
    add_pass = PassCosts.add_pass

    def counted(costs: PassCosts, rows: int, tokens: int, seconds: float) -> None:
        added.append((rows, tokens))
        add_pass(costs, rows, tokens, float(tokens))

    monkeypatch.setattr(PassCosts, "add_pass", counted)
    export(
        ExportConfig(
            model=str(checkpoint("pre_norm")),
            output=tmp_path / "bundle",
            quantize="int8",
            kernels="skipdec",
            verify=False,
        )
    )
    with Generator.open(tmp_path / "bundle", threads=1, max_batch_size=2) as generator:
        found = measure_pass_costs(generator, [5, 6, 7], 40, rows=2)
    assert found == tuple(map(float, range(1, 9)))
    assert {tokens for rows, tokens in added if rows == 2} == set(range(1, 9))
