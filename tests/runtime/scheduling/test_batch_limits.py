"""Plan what runs together, limited by rows, positions and the engines' shapes."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import UsageError
from skipdec.engines.manifest import ModelSpec
from skipdec.runtime.requests.request import Request
from skipdec.runtime.scheduling.loaded_bundle import BatchLimits, device_prefill_tokens
from skipdec.runtime.tokens.sampling import SamplingParams

HOST = BatchLimits(6, 6, 1)
ONNXRUNTIME = BatchLimits(6, 6, 1, pads_rows=True)
TENSORRT = BatchLimits(6, 2, 1, kv_buckets=(16, 32, 64), pads_rows=True, max_prompt_tokens=20)
LONGEST = 100  # positions of the bundle


def requests(*lengths: int, n: int = 1, max_tokens: int = 10) -> list[Request]:
    params = SamplingParams(n=n, max_tokens=max_tokens)
    return [
        Request(index, None, (5,) * length, params, max_tokens)
        for index, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_steps_on_a_device_are_padded_to_few_row_counts(rows: int, padded: int) -> None:
    assert ONNXRUNTIME.padded_rows(rows) == padded
    assert HOST.padded_rows(rows) == rows


@pytest.mark.parametrize(("max_model_len", "bucket"), [(1, 16), (17, 16), (18, 32), (65, 64)])
def test_the_smallest_bucket_holds_all_but_the_last_token(max_model_len: int, bucket: int) -> None:
    limits = TENSORRT.slot_limits(max_model_len, LONGEST)
    assert (limits.max_positions, limits.capacity, limits.bucket) == (
        max_model_len,
        bucket,
        bucket,
    )
    assert (limits.most_prompts, limits.most_prompt_tokens) == (2, 20)


def test_without_buckets_slots_have_the_positions_that_are_asked_for() -> None:
    for max_model_len, positions in ((None, LONGEST), (40, 40)):
        limits = ONNXRUNTIME.slot_limits(max_model_len, LONGEST)
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
def test_more_positions_than_there_can_be_are_refused(limits: BatchLimits, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        limits.slot_limits(101, LONGEST)
    assert limits.slot_limits(None, LONGEST).max_positions == (100 if limits is HOST else 65)


@pytest.mark.parametrize(
    ("wanted", "rows", "capacity"),
    [
        ([], 1, 16),
        (requests(5), 1, 16),
        (requests(5, 25), 2, 40),
        (requests(5, 28), 2, 40),  # as those of like length have
        (requests(5, 7, 9), 4, 20),
        (requests(85, 5, n=4), 6, 96),
    ],
)
def test_a_call_has_slots_for_what_it_needs(
    wanted: list[Request], rows: int, capacity: int
) -> None:
    limits = ONNXRUNTIME.call_limits(wanted, LONGEST)
    assert (limits.max_rows, limits.capacity) == (rows, capacity)


@pytest.mark.parametrize(
    ("gigabytes", "tokens"), [(28, 8192), (19, 4096), (9, 2048), (1, 2048), (-1, 2048)]
)
def test_calls_for_prompts_are_as_long_as_a_devices_memory_allows(
    gigabytes: int, tokens: int
) -> None:
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
