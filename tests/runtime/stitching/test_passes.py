"""Rows that feed several tokens in a pass get the bits of one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_tokens import (
    TEXTS,
    Bits,
    FedStitcher,
    alone,
    beside_the_last_position,
    bits_alone,
    fed_stitcher,
    known_bits,
    known_logits,
    together,
)

from skipdec import UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.schedule.plan import LayerPlan
from skipdec.runtime.stitching.device.rows import DeviceRows, StepLayout
from skipdec.runtime.stitching.host.buffers import StepBuffers
from skipdec.runtime.stitching.host.slot_stitcher import TokenGroup
from skipdec.runtime.stitching.protocol import StepRow

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
CAPACITY = 64  # positions of the tiny models


@needs_kernels
@pytest.mark.parametrize(
    ("structure", "quantize", "kv_dtype"),
    [
        ("pre_norm", "int8", "float32"),
        ("pre_norm", "int8", "float16"),
        ("pre_norm", "int8", "bfloat16"),
        ("pre_norm", "int8", "int8"),
        ("pre_norm", "int4", "float16"),
        ("llama", "int8", "float16"),
        ("llama", "int8-block", "float16"),
        ("qwen3", "int4", "int8"),
    ],
)
def test_several_tokens_have_the_bits_of_one_at_a_time(
    exported: Callable[..., Path], structure: str, quantize: str, kv_dtype: str
) -> None:
    """Run on the host, and on a device for cache types that it handles differently."""
    bundle = exported(structure, kernels="skipdec", quantize=quantize, kv_dtype=kv_dtype)
    on_device = structure == "pre_norm" and kv_dtype in ("float32", "int8")
    wanted = None
    for device in ("cpu", "rehearsal") if on_device else ("cpu",):
        with fed_stitcher(bundle, device=device) as stitcher:
            wanted = wanted or bits_alone(stitcher)
            for width in (2, 3, 8):
                operations = together(TEXTS, width, seed=width)
                assert known_bits(TEXTS, operations, stitcher.run(operations)) == wanted


@pytest.mark.parametrize(
    ("quantize", "device"), [("none", "cpu"), ("int8", "cpu"), ("none", "rehearsal")]
)
def test_engines_of_onnxruntime_differ_only_by_rounding(
    exported: Callable[..., Path], quantize: str, device: str
) -> None:
    operations = together(TEXTS, 3, seed=5)
    with fed_stitcher(exported("pre_norm", quantize=quantize), device=device) as stitcher:
        wanted = bits_alone(stitcher)
        fed = stitcher.run(operations)
    found = list(known_logits(TEXTS, operations, fed))
    assert found
    for place, bits in found:
        one, other = (
            np.frombuffer(bytes.fromhex(each), np.float32) for each in (bits, wanted[place])
        )
        np.testing.assert_allclose(one, other, atol=0.05)


def _attends_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    set_rows = StepBuffers.set_rows
    monkeypatch.setattr(
        StepBuffers,
        "set_rows",
        lambda self, starts, *rest, **more: set_rows(
            self, [one + 1 for one in starts], *rest, **more
        ),
    )


def _keeps_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put gathered tokens back in another order."""
    of = TokenGroup.of

    def wrong(*given: Any, **more: Any) -> TokenGroup:  # noqa: ANN401
        group = of(*given, **more)
        return group if group.tokens is None else replace(group, own=group.own[::-1])

    monkeypatch.setattr(TokenGroup, "of", wrong)


def _runs_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("host", "device"):
        monkeypatch.setattr(
            f"skipdec.runtime.stitching.{module}.slot_stitcher.active_counts",
            lambda row, num_layers: [len(row.tokens)] * num_layers,
        )


def _changes_device_inputs(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, np.ndarray]], object]
) -> None:
    """Change a device's inputs for steps of several tokens per row."""
    fill = DeviceRows.fill

    def wrong(self: DeviceRows, layout: StepLayout, *arguments: Any) -> None:  # noqa: ANN401
        fill(self, layout, *arguments)
        if layout.width > 1:
            change(self._inputs.host)

    monkeypatch.setattr(DeviceRows, "fill", wrong)


def _attends_too_far_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _changes_device_inputs(
        monkeypatch, lambda inputs: np.add(inputs["starts"], 1, out=inputs["starts"])
    )


def _forgets_padding_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take logits as if the rows' tokens were not padded."""

    def dense(inputs: dict[str, np.ndarray]) -> None:
        inputs["logit rows"][...] = np.arange(len(inputs["logit rows"]))

    _changes_device_inputs(monkeypatch, dense)


@pytest.mark.parametrize(
    ("stitcher", "mutate"),
    [
        ("cpu", _attends_too_far),
        ("cpu", _keeps_padding),
        ("cpu", _runs_all_layers),
        ("rehearsal", _attends_too_far_on_a_device),
        ("rehearsal", _forgets_padding_on_a_device),
        ("rehearsal", _runs_all_layers),
    ],
    indirect=["stitcher"],
)
def test_a_wrong_position_place_or_depth_changes_bits(
    stitcher: FedStitcher,
    stitcher_bits: Bits,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
) -> None:
    operations = together(TEXTS, 3, seed=3)
    mutate(monkeypatch)
    logits = stitcher.run(operations)
    try:
        found = known_bits(TEXTS, operations, logits)
    except AssertionError:  # a repeated token gave other logits
        found = {}
    assert found != stitcher_bits


@needs_kernels
@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_padding_beyond_the_last_position_changes_no_row(
    exported: Callable[..., Path], kv_dtype: str
) -> None:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8", kv_dtype=kv_dtype)
    texts, operations = beside_the_last_position(CAPACITY)
    expected = alone(texts)
    with fed_stitcher(bundle) as stitcher:
        assert stitcher.slots.limits.max_positions == CAPACITY
        wanted = known_bits(texts, expected, stitcher.run(expected))
        found = known_bits(texts, operations, stitcher.run(operations))
    assert found == wanted


def test_moving_padding_back_into_the_cache_changes_bits(
    stitcher: FedStitcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutation lets rows start earlier where their padding does not fit, as a scatter does."""
    set_rows = StepBuffers.set_rows

    def moved(
        self: StepBuffers, starts: Sequence[int], counts: Sequence[int], *, is_split: bool
    ) -> None:
        moved = [min(start, CAPACITY - max(counts)) for start in starts]
        set_rows(self, moved, counts, is_split=is_split)

    texts, operations = beside_the_last_position(CAPACITY)
    expected = alone(texts)
    wanted = known_bits(texts, expected, stitcher.run(expected))
    monkeypatch.setattr(StepBuffers, "set_rows", moved)
    assert known_bits(texts, operations, stitcher.run(operations)) != wanted


PLANS = tuple(LayerPlan(tuple(layers)) for layers in (range(6), (0, 4, 5), (0, 3, 5)))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (StepRow(0, (5, 6), 4, PLANS[:1]), "2 tokens with 1 plans"),
        (StepRow(0, (5, 6), 4, (PLANS[1], PLANS[0])), "that the token before it bypasses"),
        (StepRow(0, (5, 6), 4, (PLANS[0], PLANS[0])), "holds 5 positions"),
        (StepRow(0, (), 4, ()), "0 tokens"),
    ],
)
@pytest.mark.parametrize("stitcher", ["cpu", "rehearsal"], indirect=True)
def test_tokens_that_cannot_be_fed_are_refused(
    stitcher: FedStitcher, row: StepRow, problem: str
) -> None:
    stitcher.run([{"begin": {"row": 0, "tokens": [5, 6, 7], "schedule": "full", "max_tokens": 3}}])
    try:
        stitcher.step([StepRow(0, (8,), 3, PLANS[:1])])
        with pytest.raises(UsageError, match=problem):
            stitcher.slots.step([row])
        stitcher.step([StepRow(0, (9,), 4, PLANS[:1])])  # the refusal changed nothing
    finally:
        stitcher.slots.reset()


def test_a_row_rolls_back_at_most_to_where_it_left_a_layer(stitcher: FedStitcher) -> None:
    stitcher.run([{"begin": {"row": 0, "tokens": [5, 6, 7], "schedule": "full", "max_tokens": 9}}])
    try:
        stitcher.step([StepRow(0, (8,), 3, PLANS[:1])])
        stitcher.step([StepRow(0, (8, 9, 9), 4, (PLANS[1],) * 3)])
        for length in (3, 8):
            with pytest.raises(UsageError, match="rolled back to 4 to 7 positions, not to"):
                stitcher.slots.truncate(0, length)
        stitcher.slots.truncate(0, 4)
    finally:
        stitcher.slots.reset()
