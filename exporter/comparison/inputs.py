"""Random inputs of one engine: a ragged prompt, then a single token per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...engines.manifest import PAST_OF, EngineKind, EngineSpec, Manifest, TensorRole
from ...engines.memory import Array
from ..verification.caches import position_inputs

_PROMPT_LENGTHS = (32, 5, 17)  # padded on the right


@dataclass(frozen=True)
class EngineCall:
    """One call of an engine: S tokens in each of B rows, those of row b from ``starts[b]`` on.

    ``starts`` and ``lengths`` are int64 [B]; row b has ``lengths[b]`` tokens, then padding.
    ``tensors`` are the inputs by role except those that state positions; caches [B, N, T, D] are
    zero at positions that were never written.
    """

    step: int
    starts: Array
    lengths: Array
    num_tokens: int  # S
    tensors: Mapping[TensorRole, Array]

    @property
    def positions(self) -> int:
        """The number of positions that the call reaches."""
        return int(self.starts.max()) + self.num_tokens

    def feed(self, spec: EngineSpec, capacity: int) -> dict[str, Array]:
        """Return the inputs of ``spec`` by name, in its dtypes, with caches of ``capacity``."""
        given = dict(self.tensors)
        if spec.kind is EngineKind.LAYER:
            given |= position_inputs(self.starts, self.num_tokens, capacity)
            for past in PAST_OF.values():
                missing = capacity - given[past].shape[2]
                given[past] = np.pad(given[past], ((0, 0), (0, 0), (0, missing), (0, 0)))
        return {
            tensor.name: np.asarray(given[tensor.role], tensor.dtype, order="C")
            for tensor in spec.inputs
        }

    def valid(self, name: str, array: Array) -> Array | None:
        """Return an output, or an inner tensor, as [tokens, ...] without padding.

        ``name`` is an output's role. Returns None for an inner tensor without a row per token.
        """
        if name in PAST_OF:
            written = np.arange(array.shape[2]) < (self.starts + self.lengths)[:, None]  # [B, T]
            return array.swapaxes(1, 2)[written]
        if name == TensorRole.LOGITS:
            return array
        if array.shape[:2] != (len(self.starts), self.num_tokens):
            return None
        return array[np.arange(self.num_tokens) < self.lengths[:, None]]


def random_calls(spec: EngineSpec, manifests: tuple[Manifest, ...], seed: int) -> list[EngineCall]:
    """Return calls of an engine for a prompt and for a step, within the limits of both bundles.

    A model with a single position has no step.
    Hidden states and caches are N(0, 1), about what the norm at the start of a layer produces.
    """
    builds = [each.build for each in manifests if each.build]
    rows = min((min(b.max_batch_size, b.max_prefill_rows) for b in builds), default=3)
    positions = min(each.model.max_seq_len for each in manifests)
    longest = min([max(1, positions - 1), *(build.max_prompt_len for build in builds)])
    lengths = np.minimum(_PROMPT_LENGTHS[:rows], longest)  # [B]
    rng = np.random.default_rng([seed, spec.layer_index or 0])
    steps = ((np.zeros_like(lengths), lengths), (lengths, np.ones_like(lengths)))
    return [
        EngineCall(
            step,
            starts,
            counts,
            int(counts.max()),
            dict(_tensors(spec, manifests[0], starts, counts, rng)),
        )
        for step, (starts, counts) in enumerate(steps[:positions])
    ]


def _tensors(
    spec: EngineSpec,
    manifest: Manifest,
    starts: Array,
    counts: Array,
    rng: np.random.Generator,
) -> Iterator[tuple[TensorRole, Array]]:
    model, rows, num_tokens = manifest.model, len(starts), int(counts.max())
    if spec.kind is EngineKind.EMBED:
        yield TensorRole.INPUT_IDS, rng.integers(0, model.vocab_size, (rows, num_tokens))
        yield TensorRole.POSITION_IDS, starts[:, None] + np.arange(num_tokens)  # [B, S]
        return
    hidden = spec.tensor(TensorRole.HIDDEN_STATES)
    size = int(hidden.shape[-1])
    yield hidden.role, rng.standard_normal((rows, num_tokens, size), np.float32)
    if spec.kind is EngineKind.LAYER:
        shape = (rows, model.num_kv_heads, int(starts.max()) + num_tokens, model.head_dim)
        written = np.arange(shape[2]) < starts[:, None]  # [B, T]
        for past in PAST_OF.values():
            yield past, rng.standard_normal(shape, np.float32) * written[:, None, :, None]
    else:
        yield TensorRole.ROW_POSITIONS, np.arange(rows) * num_tokens + counts - 1
