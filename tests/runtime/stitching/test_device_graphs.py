"""Steps on a device run as graphs of their parts, and layers find rows by their layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from host_device import HostDevice

from skipdec.runtime.stitching.device import steps as device_graphs
from skipdec.runtime.stitching.device.rows import StepLayout
from skipdec.runtime.stitching.device.steps import GraphCapture, StepGraphs, StepPart

ROWS = 4  # at most


class Steps:
    """Runs steps whose parts record their execution."""

    def __init__(self) -> None:
        self.device = HostDevice()
        self.graphs = StepGraphs(self.device, GraphCapture(self.device))
        self.ran: list[int] = []

    def run(self, *keys: int) -> None:
        for key in keys:
            work = [partial(self.device.enqueue, partial(self.ran.append, key))]
            self.graphs.parts.setdefault(key, StepPart(key, work))
        before = len(self.ran)
        self.graphs.enqueue([self.graphs.parts[key] for key in keys])
        self.device.synchronize()
        assert self.ran[before:] == list(keys)

    def launches(self, *keys: int) -> int:
        before = self.device.counts["graph_launches"]
        self.run(*keys)
        return self.device.counts["graph_launches"] - before


def test_a_step_is_captured_once_and_then_launched() -> None:
    steps = Steps()
    assert [steps.launches(1, 2, 3) for _ in range(3)] == [0, 1, 1]
    assert steps.launches(1, 3) == 0


def test_with_all_graphs_in_use_only_a_repeated_step_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_graphs, "MOST_GRAPHS", 2)
    steps = Steps()
    steps.run(1, 2)
    steps.run(1, 3)
    assert steps.launches(2, 3) == 0  # captures its parts
    assert steps.launches(1, 2, 3) == 2  # launches the parts that have graphs
    assert steps.launches(2, 3) == 2  # repeated: captured whole, evicts the LRU graph
    assert steps.launches(2, 3) == steps.launches(1, 3) == 1
    assert steps.launches(1, 2) == 2  # evicted; its parts are not
    assert len(steps.graphs) == 2


def test_clear_destroys_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_graphs, "MOST_GRAPHS", 1)
    steps = Steps()
    steps.run(1, 2)
    steps.run(2, 3)
    steps.graphs.clear()
    assert steps.device.counts["graphs_destroyed"] == 1 + 2
    assert steps.launches(1, 2) == steps.launches(2, 3) == 0


def laid_out(rows: Sequence[int], *residents: Sequence[int]) -> StepLayout:
    return StepLayout.of(rows, residents, ROWS)


def test_a_layer_reads_each_row_where_it_was_last_written() -> None:
    """Of rows a b c, layer 1 runs b and layer 2 runs c b, as in the module's worked example."""
    layout = laid_out([7, 8, 9], [], [8], [9, 8])
    assert (layout.order, layout.layers, layout.is_aligned) == ((7, 8, 9), ((1, 1), (2, 2)), False)
    section = np.arange(5) * ROWS  # starts of the sections: embedding, layers 0 to 2
    assert layout.sources[1, 0] == section[0] + 1  # the embedding of b
    assert layout.sources[2, :2].tolist() == [section[0] + 2, section[2] + 0]
    assert layout.sources[3, :3].tolist() == [section[0] + 0, section[3] + 1, section[3] + 0]
    assert layout.fed[1].tolist() == [1, ROWS, ROWS, ROWS]
    assert layout.fed[2].tolist() == [2, 1, ROWS, ROWS]


def test_padding_repeats_the_last_token_that_runs_the_layer() -> None:
    """Row 7 feeds three tokens, row 8 one, width 4; the third of row 7 bypasses layer 1."""
    counts = np.array([[3, 2, 3], [1, 1, 1]])  # rows 7 and 8: layer 0, layer 1, all layers
    layout = StepLayout.of([7, 8], [[7, 8], [8, 7]], ROWS, 4, counts)
    section = np.arange(3) * ROWS * 4
    assert not layout.is_aligned
    assert layout.fed[0, :8].tolist() == [0, 1, 2, 2, 4, 4, 4, 4]
    assert layout.fed[1, :8].tolist() == [4, 4, 4, 4, 0, 1, 1, 1]
    assert set(layout.fed[0, 8:].tolist()) == {ROWS * 4}
    assert layout.sources[1, :8].tolist() == [section[1] + at for at in (4, 4, 4, 4, 0, 1, 1, 1)]
    # Sections of the embedding, layer 0 and layer 1; the head reads each token's last one.
    assert layout.sources[2, :3].tolist() == [section[2] + 4, section[2] + 5, section[1] + 2]
    assert layout.sources[2, 4] == section[2] + 0


def test_states_at_each_depth_are_kept_where_last_written() -> None:
    """Keep rows a b c after one, two and three layers; layer 1 runs b, layer 2 runs c b."""
    residents = [[], [8], [9, 8]]
    layout = StepLayout.of([7, 8, 9], residents, ROWS, 1, None, (1, 2, 3))
    section = np.arange(5) * ROWS
    kept = layout.kept.T.tolist()
    assert kept[0] == [0, 1, 2]  # layer 0 runs no row
    assert kept[1] == [0, section[2] + 0, 2]
    assert kept[2] == [0, section[3] + 1, section[3] + 0]
    assert not StepLayout.of([7, 8, 9], residents, ROWS).kept.size


def test_nothing_is_gathered_where_all_tokens_run_all_layers() -> None:
    """Rows may feed different numbers of tokens."""
    counts = np.array([[3, 3, 3], [1, 1, 1]])
    assert StepLayout.of([7, 8], [[8, 7], [8, 7]], ROWS, 4, counts).is_aligned
    counts[0, 1] = 2
    assert not StepLayout.of([7, 8], [[8, 7], [8, 7]], ROWS, 4, counts).is_aligned


@pytest.mark.parametrize(
    ("residents", "is_aligned"),
    [
        (([3, 1], [3, 1]), True),
        (([3, 1], []), True),
        (([3, 1], [1, 3]), False),
        (([3, 1], [3]), False),
        (([3], [3]), False),
    ],
)
def test_nothing_is_gathered_where_all_layers_run_the_same_rows(
    residents: tuple[list[int], ...], is_aligned: bool
) -> None:
    layout = laid_out([1, 3], *residents)
    assert layout.is_aligned == is_aligned
    assert layout.order == ((3, 1) if is_aligned else (1, 3))
