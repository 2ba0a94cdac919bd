"""Costs of steps and prompts equal those counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hollow_bundles import EMBED_BYTES, HEAD_BYTES, LAYER_BYTES, hollow_manifest

from skipdec.engines.manifest import PrecisionSpec
from skipdec.runtime.measuring.cost import CostModel
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

KV_POSITION = 2 * 2 * 4 * 4  # key and value, 2 heads of 4 float32
ENDS = EMBED_BYTES + HEAD_BYTES


def test_weights_are_read_once_and_caches_by_every_row() -> None:
    cost = CostModel(hollow_manifest(6))
    plan = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4).plan(0)
    step = cost.step(plan, [10, 20])
    assert step.weights == ENDS + 4 * LAYER_BYTES
    assert step.kv == 4 * (10 + 20) * KV_POSITION
    assert step.total == step.weights + step.kv


def test_decode_adds_the_steps_after_the_prompt() -> None:
    cost = CostModel(hollow_manifest(6))
    schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
    decode = cost.decode(schedule, [10], num_tokens=4)  # steps of 4, 3 and 3 layers
    assert decode.weights == 3 * ENDS + 10 * LAYER_BYTES
    assert decode.kv == (4 * 11 + 3 * 12 + 3 * 13) * KV_POSITION


def test_a_prompts_work_counts_the_layers_its_tokens_run() -> None:
    cost = CostModel(hollow_manifest(6))  # 250 weights a layer, 500 in the head, N D = 8
    falling = ExitSchedule(
        num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4, prompt="decay"
    )
    assert [falling.prompt_budget(index, 3) for index in range(3)] == [6, 5, 4]
    head, layer = HEAD_BYTES // 4, LAYER_BYTES // 4
    matrices = (6 + 5 + 4) * layer
    pairs = 4 * 6 + 1 * 3 + 1 * 1  # four layers on 3 tokens, one on 2, one on 1
    assert cost.prefill(falling, [3]) == head + matrices + 2 * 8 * pairs
    assert cost.prefill(falling, [3, 3]) == 2 * cost.prefill(falling, [3])
    full = ExitSchedule.full(6)
    assert cost.prefill(full, [3]) == head + 18 * layer + 2 * 8 * 36


@pytest.mark.parametrize(
    ("precision", "bits"),
    [
        ({"dtype": "float16"}, 16),
        ({"quantize": "int8"}, 8),
        ({"quantize": "fp8"}, 8),
        ({"quantize": "int4", "block_size": 32}, 4 + 32 / 32),
        ({"quantize": "int8-block", "block_size": 64}, 8 + 32 / 64),
    ],
)
def test_a_prompts_work_is_independent_of_weight_storage(
    precision: dict[str, Any], bits: float
) -> None:
    cost = CostModel(hollow_manifest(2, **precision))
    full = ExitSchedule.full(2)
    more = cost.prefill(full, [2]) - cost.prefill(full, [1])
    assert more == 2 * round(8 * LAYER_BYTES / bits) + 2 * 8 * (2 * 3 - 1 * 2)


@pytest.mark.parametrize(
    ("precision", "bits"),
    [
        ({"quantize": "int4", "block_size": 32, "accuracy_level": 4}, 4 + 16 / 32),
        ({"quantize": "int8-block", "block_size": 64, "accuracy_level": 4}, 8 + 16 / 64),
    ],
)
def test_blocks_of_skipdecs_kernels_have_16_bit_scales(
    precision: dict[str, Any], bits: float
) -> None:
    changes = {"kernels": "skipdec", "precision": PrecisionSpec(**precision)}
    cost = CostModel(hollow_manifest(2).model_copy(update=changes))
    full = ExitSchedule.full(2)
    more = cost.prefill(full, [2]) - cost.prefill(full, [1])
    assert more == 2 * round(8 * LAYER_BYTES / bits) + 2 * 8 * (2 * 3 - 1 * 2)


def test_the_head_limits_the_ratio_of_bytes() -> None:
    cost = CostModel(hollow_manifest(24))
    constant = ExitSchedule(
        num_layers=24, max_exit_layer=6, min_exit_layer=6, horizon=1, decay="constant"
    )
    full = 24 * LAYER_BYTES + ENDS + 24 * 2 * KV_POSITION
    kept = 6 * LAYER_BYTES + ENDS + 6 * 2 * KV_POSITION
    assert cost.bytes_ratio(constant, [1], num_tokens=2) == pytest.approx(full / kept)
    assert cost.bytes_ratio(ExitSchedule.full(24), [9], num_tokens=5) == 1.0


@pytest.mark.parametrize(
    ("precision", "layer", "head"),
    [
        ({"dtype": "float16"}, 2, 2),
        ({"dtype": "float16", "quantize": "int8"}, 1, 2),
        ({"dtype": "float32", "quantize": "int4", "head_quantize": "int4"}, 1, 1),
    ],
)
def test_float16_matrices_are_read_as_float32_on_a_cpu(
    precision: dict[str, str], layer: int, head: int
) -> None:
    cost = CostModel(hollow_manifest(3, **precision))
    step = cost.step(ExitSchedule.full(3).plan(0), [0])
    assert step.weights == EMBED_BYTES + head * HEAD_BYTES + 3 * layer * LAYER_BYTES


def test_float16_matrices_are_read_as_float16_on_a_device() -> None:
    cost = CostModel(hollow_manifest(3, dtype="float16"), on_device=True)
    step = cost.step(ExitSchedule.full(3).plan(0), [0])
    assert step.weights == EMBED_BYTES + HEAD_BYTES + 3 * LAYER_BYTES


def test_mixing_loss_grows_with_the_slots() -> None:
    cost = CostModel(hollow_manifest(6))
    schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
    losses = [cost.mixing_loss(schedule, 0, num_tokens=4, slots=slots) for slots in (1, 2, 99)]
    assert losses[0] == pytest.approx(1.0)
    layers, kv = LAYER_BYTES, (4 * 1 + 3 * 2 + 3 * 3) / 3 * KV_POSITION  # steps of 4, 3, 3 layers
    bound = ENDS + 10 / 3 * layers
    once_in_three = 1 - (2 / 3) ** 2  # chance that one of two rows runs the fourth layer
    assert losses[1] == pytest.approx(
        (ENDS + (3 + once_in_three) * layers + 2 * kv) / (bound + 2 * kv)
    )
    assert losses[2] == pytest.approx((ENDS + 4 * layers + 99 * kv) / (bound + 99 * kv))


def test_a_constant_depth_has_no_mixing_loss() -> None:
    cost = CostModel(hollow_manifest(6))
    constant = parse_schedule("constant:max=3", num_layers=6)
    assert cost.mixing_loss(constant, 10, num_tokens=64, slots=8) == pytest.approx(1.0)
