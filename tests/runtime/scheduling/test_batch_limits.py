"""Rows, positions and the engines' shapes limit what runs together."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import UsageError
from skipdec.engines.manifest import ModelSpec
from skipdec.runtime.kv.limits import Limits, device_prefill_tokens

LONGEST = 100  # positions of the bundle
HOST = Limits(6, LONGEST, 1)
ONNXRUNTIME = Limits(6, LONGEST, 1, pads_rows=True)
TENSORRT = Limits(
    6, 65, 1, prefill_rows=2, prompt_tokens=20, kv_buckets=(16, 32, 64), pads_rows=True
)


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_device_steps_are_padded_to_few_row_counts(rows: int, padded: int) -> None:
    assert ONNXRUNTIME.padded_rows(rows) == padded
    assert HOST.padded_rows(rows) == rows


@pytest.mark.parametrize(("max_model_len", "bucket"), [(1, 16), (17, 16), (18, 32), (65, 64)])
def test_the_smallest_bucket_holds_all_but_the_last_token(max_model_len: int, bucket: int) -> None:
    limits = TENSORRT.of_batch(max_model_len)
    assert (limits.max_positions, limits.capacity, limits.bucket) == (
        max_model_len,
        bucket,
        bucket,
    )
    assert (limits.prefill_rows, limits.prompt_tokens) == (2, 20)


def test_without_buckets_slots_have_max_model_len_positions() -> None:
    for max_model_len, positions in ((None, LONGEST), (40, 40)):
        limits = ONNXRUNTIME.of_batch(max_model_len)
        assert (limits.max_positions, limits.capacity, limits.bucket) == (
            positions,
            positions,
            None,
        )


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (HOST, "is 101; the bundle holds 100 positions; lower it"),
        (TENSORRT, "is 101; the bundle holds 65 positions; lower it"),
    ],
)
def test_more_positions_than_the_bundle_holds_are_refused(limits: Limits, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        limits.of_batch(101)
    assert limits.of_batch(None).max_positions == (100 if limits is HOST else 65)


@pytest.mark.parametrize(
    ("wanted", "positions", "rows", "capacity"),
    [
        (0, 1, 1, 16),
        (1, 15, 1, 16),
        (2, 35, 2, 40),
        (2, 38, 2, 40),  # the capacity is shared by similar lengths
        (3, 19, 4, 20),
        (8, 95, 6, 96),
    ],
)
def test_a_call_has_the_slots_it_needs(
    wanted: int, positions: int, rows: int, capacity: int
) -> None:
    limits = ONNXRUNTIME.of_call(wanted, positions)
    assert (limits.max_rows, limits.capacity) == (rows, capacity)


@pytest.mark.parametrize(
    ("gigabytes", "tokens"), [(28, 8192), (19, 4096), (9, 2048), (1, 2048), (-1, 2048)]
)
def test_prefill_tokens_grow_with_a_devices_memory(gigabytes: int, tokens: int) -> None:
    model = ModelSpec(
        name="opt-1.3b",
        num_layers=24,
        hidden_size=2048,
        num_heads=32,
        vocab_size=50272,
        max_position_embeddings=2048,
        max_seq_len=2048,
    )
    assert device_prefill_tokens(model, gigabytes * 10**9) == tokens
