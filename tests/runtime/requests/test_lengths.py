"""A request without max_tokens reserves at most the longest allowed length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import CapacityError, UsageError

OPEN = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


@pytest.mark.parametrize(("max_model_len", "expected"), [(None, 61), (20, 17)])
def test_a_text_without_max_tokens_ends_at_the_batchs_limit(
    exported: Callable[..., Path], max_model_len: int | None, expected: int
) -> None:
    with (
        Generator.open(exported("untied"), threads=1) as generator,
        generator.running_batch(max_model_len=max_model_len) as batch,
    ):
        number = batch.add([5, 6, 7], OPEN, schedule="full")
        while batch.is_busy:
            batch.step()
        assert len(batch.take(number).outputs[0].token_ids) == expected


def test_a_request_beyond_the_limit_or_kv_memory_is_refused(
    exported: Callable[..., Path],
) -> None:
    with Generator.open(exported("untied"), threads=1, kv_memory=1 << 16) as generator:
        with generator.running_batch(max_model_len=8) as batch:
            with pytest.raises(CapacityError, match=r"allows 8; raise it, or shorten the prompt$"):
                batch.add([5] * 9, OPEN, schedule="full")
            batch.add([5] * 7, OPEN, schedule="full")
            with pytest.raises(UsageError, match="is 99; max_model_len allows 8 positions"):
                batch.add([5], OPEN.updated(max_tokens=99), schedule="full")
        with (
            generator.running_batch() as batch,
            pytest.raises(CapacityError, match="kv_memory allows 65,536; raise it"),
        ):
            batch.add([5], OPEN, schedule="full")


def test_kv_memory_too_small_for_any_request_is_refused(
    exported: Callable[..., Path],
) -> None:
    def require_room(kv_memory: int) -> None:
        with (
            Generator.open(exported("untied"), threads=1, kv_memory=kv_memory) as generator,
            generator.running_batch() as batch,
        ):
            batch.memory.require_room(generator.resolve_schedule("full", max_tokens=1))
            batch.add([5], OPEN.updated(max_tokens=1), schedule="full")

    message = r"is 1 bytes for this bundle; allowed: 8,192 or more, for the shortest request; one"
    with pytest.raises(CapacityError, match=message):
        require_room(1)
    require_room(8192)
