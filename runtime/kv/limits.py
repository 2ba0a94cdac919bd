"""Limits: what the engines of a bundle, or one batch on them, may run at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from ...engines.constants import integer
from ...engines.errors import UsageError
from ...engines.manifest import Manifest, ModelSpec
from .buffers import size_class

# Enough tokens for matrix products to run at full speed; more would only cost activation memory.
MAX_PREFILL_TOKENS = integer("default_max_prefill_tokens")
# A device is idle between calls: 64 prompts of 128 tokens take less time in one call than in four.
_MOST_DEVICE_TOKENS = 4 * MAX_PREFILL_TOKENS
# Each layer's session keeps what it allocated for its longest call. Per token and element of the
# hidden state: two bytes each for products, biases and activations, four inside norms.
_ACTIVATION_BYTES = 48


@dataclass(frozen=True)
class Limits:
    """The limits of all batches of a bundle, or of one batch.

    Up to ``max_rows`` completions run at once, each with up to ``max_positions`` tokens of prompt
    and text, in ``kv_bytes`` of KV memory. One prefill call takes up to ``prefill_tokens``, from at
    most ``prefill_rows`` prompts of up to ``prompt_tokens`` each, if the engines have such
    limits. ``kv_buckets`` are the static capacities of the engines, ascending, or empty if they
    take any capacity. With ``pads_rows``, on a device, steps run on 1, 2, 4, … rows, and all slots
    of a batch have ``capacity`` positions, including padding if rows feed several tokens.
    """

    max_rows: int
    max_positions: int
    kv_bytes: int
    prefill_tokens: int = MAX_PREFILL_TOKENS
    prefill_rows: int | None = None
    prompt_tokens: int | None = None
    kv_buckets: tuple[int, ...] = ()
    pads_rows: bool = False
    capacity: int | None = None

    @classmethod
    def of(cls, manifest: Manifest, *, max_rows: int, kv_bytes: int, on_device: bool) -> Self:
        """Return the limits of a bundle's engines, with those that TensorRT's were built for.

        Raises UsageError if ``max_rows`` is more than the engines were built for.
        """
        build, positions = manifest.build, manifest.model.max_seq_len
        if build is None:
            return cls(max_rows, positions, kv_bytes, pads_rows=on_device)
        if max_rows > build.max_batch_size:
            raise UsageError(
                "max_batch_size",
                f"is {max_rows}; the engines were built for up to {build.max_batch_size} "
                "rows; lower it, or build them again with --max-batch-size",
            )
        return cls(
            max_rows,
            # The cache of the longest row holds one position less than its tokens.
            min([positions, *(bucket + 1 for bucket in build.kv_buckets[-1:])]),
            kv_bytes,
            prefill_rows=min(max_rows, build.max_prefill_rows),
            prompt_tokens=build.max_prompt_len,
            kv_buckets=build.kv_buckets,
            pads_rows=True,
        )

    def of_batch(self, max_model_len: int | None) -> Self:
        """Return the limits of a batch whose rows have up to ``max_model_len`` positions.

        None allows as many as the engines hold. Raises UsageError for more.
        """
        positions = self.max_positions if max_model_len is None else max_model_len
        if positions > self.max_positions:
            raise UsageError(
                "max_model_len",
                f"is {positions}; the bundle holds {self.max_positions} positions; lower it",
            )
        return self._of(self.max_rows, positions, positions)

    def of_call(self, rows: int, positions: int) -> Self:
        """Return the limits of a batch that only runs ``rows`` rows of up to ``positions``.

        There are few sizes of capacity, so that calls of similar lengths reuse the same bindings.
        The running batch refuses requests that are too long for any capacity.
        """
        rows = self.padded_rows(max(1, min(self.max_rows, rows)))
        positions = min(positions, self.max_positions)
        return self._of(rows, positions, capacity_class(positions, self.max_positions))

    def _of(self, rows: int, positions: int, capacity: int) -> Self:
        limits = replace(self, max_rows=rows, max_positions=positions)
        return replace(limits, capacity=limits.bucket or capacity) if self.pads_rows else limits

    @property
    def bucket(self) -> int | None:
        """The engines' capacity for rows of ``max_positions``; None where it is not static."""
        return self.kv_bucket(max(1, self.max_positions - 1))

    @property
    def slot_capacity(self) -> int:
        """The positions of each slot on a device."""
        assert self.capacity is not None, "slots of the host have as many as their rows need"
        return self.capacity

    @property
    def chunk_tokens(self) -> int:
        """The most tokens of one prompt in a call; longer prompts run in chunks."""
        return min(self.prefill_tokens, self.prompt_tokens or self.prefill_tokens)

    def kv_bucket(self, positions: int) -> int | None:
        """Return the smallest static capacity that holds ``positions``, or None without any."""
        return next((bucket for bucket in self.kv_buckets if bucket >= positions), None)

    def padded_rows(self, rows: int) -> int:
        """Return the number of rows that a step of ``rows`` rows runs on: 1, 2, 4, … on a device.

        >>> [Limits(6, 64, 1, pads_rows=True).padded_rows(rows) for rows in (2, 3, 5)]
        [2, 4, 6]
        """
        return row_class(rows, self.max_rows) if self.pads_rows else rows

    def prompt_problems(self, subject: str, num_tokens: int) -> Iterator[str]:
        """Yield a problem if a prompt of ``num_tokens`` is too long for the engines."""
        if self.prompt_tokens is not None and num_tokens > self.prompt_tokens:
            yield (
                f"{subject} has {num_tokens} tokens; the engines were built for prompts of up to "
                f"{self.prompt_tokens}; shorten it, or build again with a larger max_prompt_len"
            )


def row_class(rows: int, most: int) -> int:
    """Round up to 1, 2, 4, 8, … rows, at most ``most``, so that buffers seldom grow."""
    return min(1 << (rows - 1).bit_length(), most)


def capacity_class(positions: int, most: int) -> int:
    """Round up to four sizes per octave from 16 positions on, at most ``most``."""
    return min(size_class(positions, 16), most)


def device_prefill_tokens(model: ModelSpec, nbytes: int) -> int:
    """Return the tokens of a prefill call whose activations take up to ``nbytes`` on a device.

    It is 2,048, 4,096 or 8,192; opt-1.3b's need 19.3 GB for the last.
    """
    token_bytes = model.num_layers * model.hidden_size * _ACTIVATION_BYTES
    tokens = _MOST_DEVICE_TOKENS
    while tokens > MAX_PREFILL_TOKENS and tokens * token_bytes > nbytes:
        tokens //= 2
    return tokens
