"""Costs of passes: one for each number of tokens, and measured, not estimated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec import Generator
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.drafting.costs import PassCosts
from skipdec.runtime.measuring.passes import measure_pass_costs


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
def test_passes_of_every_length_are_measured(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[tuple[int, int]] = []
    add_pass = PassCosts.add_pass

    def counted(costs: PassCosts, rows: int, tokens: int, seconds: float) -> None:
        added.append((rows, tokens))
        add_pass(costs, rows, tokens, float(tokens))

    monkeypatch.setattr(PassCosts, "add_pass", counted)
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8")
    with Generator.open(bundle, threads=1, max_batch_size=2) as generator:
        found = measure_pass_costs(generator, [5, 6, 7], 40, rows=2)
    assert found == tuple(map(float, range(1, 9)))
    assert {tokens for rows, tokens in added if rows == 2} == set(range(1, 9))
