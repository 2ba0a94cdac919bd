"""Check that a layer's tokens depend only on the preceding tokens of their own row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...engines.manifest import EngineSpec, TensorRole
from ...engines.memory import Array
from .caches import unused_cache
from .calls import EngineCalls

_LENGTH = 19  # of each row's prompt
# Ways to divide each row's prompt into pieces, by their lengths.
_CUTS: tuple[tuple[int, ...], ...] = ((19,), (1, 8, 10), (7, 7, 5), (16, 1, 1, 1))
_Result = tuple[Array, Array, Array]  # hidden states, keys and values of one row


def dependence(engine: EngineCalls, spec: EngineSpec, rng: np.random.Generator) -> str | None:
    """Return a way of running prompts that changes bits, compared with rows alone, or None.

    All rows of a batch are divided alike. Pieces after the first start at later positions, which
    only engines of skipdec's kernels support.
    """
    size = int(spec.tensor(TensorRole.HIDDEN_STATES).shape[-1])
    rows = rng.standard_normal((len(_CUTS), _LENGTH, size)).astype(np.float32)  # [B, S, E]
    alone = [next(_run(engine, spec, rows[[row]], (_LENGTH,))) for row in range(len(rows))]
    for cut in _CUTS:
        for row, result in enumerate(_run(engine, spec, rows, cut)):
            for name, seen, expected in zip(
                ("hidden states", "keys", "values"), result, alone[row], strict=True
            ):
                if seen.tobytes() != expected.tobytes():
                    pieces = (
                        "whole" if len(cut) == 1 else f"in pieces of {', '.join(map(str, cut))}"
                    )
                    return (
                        f"{name} of row {row}, its prompt {pieces} in a batch of {len(rows)}, "
                        "differ from those of the row alone"
                    )
    return None


def _run(
    engine: EngineCalls, spec: EngineSpec, rows: Array, cut: Sequence[int]
) -> Iterator[_Result]:
    """Run [B, S, E] in pieces with new caches; yield each row's final result."""
    past = spec.tensor(TensorRole.PAST_KEY)
    key, value = (unused_cache(past, len(rows), _LENGTH, zeroed=False) for _ in range(2))
    pieces, start = [], 0
    for length in cut:
        states = np.ascontiguousarray(rows[:, start : start + length])
        pieces.append(engine.layer(states, key, value, np.full(len(rows), start)))
        start += length
    yield from zip(np.concatenate(pieces, axis=1), key, value, strict=True)
