"""The merged graph computes the same as the stitched engines and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.stitching import StitchingBench, StitchingCost, merge_engines

from skipdec.engines.bundle import EngineBundle


@pytest.mark.parametrize("structure", ["pre_norm", "post_norm", "no_bias"])
def test_merged_graph_computes_what_the_engines_compute(
    exported: Callable[..., Path], structure: str
) -> None:
    path = exported(structure)
    beside = sorted(path.parent.iterdir())
    bench = StitchingBench(EngineBundle.open(path), length=9)
    assert sorted(path.parent.iterdir()) == beside
    start = bench.hidden_states.copy()
    bench.run_stitched()
    stitched = bench.hidden_states.copy()
    bench.hidden_states[...] = start
    bench.run_merged()
    np.testing.assert_allclose(bench.hidden_states, stitched, rtol=1e-5, atol=1e-5)
    assert not np.allclose(stitched, start)


def test_merged_graph_names_each_tensor_once_and_has_one_hidden_state(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = EngineBundle.open(exported("pre_norm"))
    merged = merge_engines(bundle, bundle.manifest.layers, tmp_path)
    outputs = [value.name for value in merged.graph.output]
    assert [name for name in outputs if "hidden_states" in name] == ["layer_005/hidden_states_out"]
    assert len(outputs) == 1 + 2 * 6
    made = [name for node in merged.graph.node for name in node.output if name]
    assert len(made) == len(set(made))


def test_ratio_is_the_median_of_pairs() -> None:
    assert StitchingCost((2.0, 3.0, 9.0), (1.0, 3.0, 3.0)).ratio == 2.0


def test_measure_times_both(exported: Callable[..., Path]) -> None:
    cost = StitchingBench(EngineBundle.open(exported("pre_norm")), length=9).measure(3)
    assert len(cost.stitched) == len(cost.merged) == 3
    assert min(cost.stitched + cost.merged) > 0
