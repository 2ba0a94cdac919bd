"""How far a quantised bundle's next-token distributions may be from the checkpoint's.

The measure is the Kullback-Leibler divergence of the bundle from the reference, in nats a token:
what the bundle would lose on texts that the reference itself writes.  Bounds were set from the
measurements in docs/guides/export.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engines.manifest import PrecisionSpec

_LEAST_PROBABILITY = 1e-6  # sums of float32 probabilities are no more exact
_SMALL_BLOCK = 32


@dataclass(frozen=True)
class DivergenceBound:
    """Bounds on the mean divergence, in nats a token.

    Above ``usual``, more than sound models were measured to have, verification warns; above
    ``largest`` it fails.
    """

    usual: float
    largest: float


_WEIGHTS: Mapping[str, DivergenceBound] = {
    "int8": DivergenceBound(0.005, 0.02),
    "int8-block": DivergenceBound(0.005, 0.02),
    "int4": DivergenceBound(0.1, 0.3),
    "fp8": DivergenceBound(0.1, 0.3),  # not measured: no GPU was at hand
}
_CACHE: Mapping[str, DivergenceBound] = {"int8": DivergenceBound(0.001, 0.005)}


def divergence_bound(precision: PrecisionSpec) -> DivergenceBound | None:
    """Return the bound of the coarsest format in ``precision``; None if all of them are floats."""
    bounds = [_WEIGHTS.get(name) for name in (precision.quantize, precision.head_quantize)]
    bounds.append(_CACHE.get(precision.kv_dtype or precision.dtype))
    return max(
        (bound for bound in bounds if bound is not None),
        key=lambda bound: bound.largest,
        default=None,
    )


def divergence(expected: NDArray[np.floating[Any]], logprobs: Mapping[int, float]) -> float:
    """Return the divergence at one position of ``logprobs`` from ``expected``, in nats.

    ``expected`` [V] are the reference's log-probabilities; ``logprobs`` maps some tokens to the
    bundle's.  All other tokens count as one, so this is at most the divergence over all of them.
    NaN if a log-probability is.
    """
    tokens = list(logprobs)
    own = np.array([logprobs[token] for token in tokens])
    reference = expected[tokens]
    weights = np.exp(reference)
    rest = np.maximum(1 - weights.sum(), _LEAST_PROBABILITY)
    own_rest = np.maximum(1 - np.exp(own).sum(), _LEAST_PROBABILITY)  # keeps NaN, unlike max
    return float(weights @ (reference - own) + rest * np.log(rest / own_rest))


def remedies(
    precision: PrecisionSpec, *, is_migrated: bool = False, is_compiled: bool = False
) -> Iterator[str]:
    """Yield what rounds less than ``precision`` does, the cheapest first; nothing for floats.

    ``is_migrated``: outliers were moved into the weights already. ``is_compiled``: for TensorRT,
    whose blocks have no accuracy level.
    """
    if divergence_bound(precision) is None:
        return
    used = {precision.quantize, precision.head_quantize}
    if precision.kv_dtype == "int8":
        yield "--kv-dtype float16"
    if not used.isdisjoint(("int8", "fp8")) and not is_migrated:
        yield (
            "moving outliers into the weights with 'skipdec calibrate MODEL --data FILE --migrate "
            "0.5 -o ranges.json' and --ranges ranges.json"
        )
    if precision.accuracy_level == 4:
        yield "--accuracy-level 0"
    if "int8" in used:
        yield f"--quantize int8-block{'' if is_compiled else ' --accuracy-level 0'}"
    if "int4" in used:
        yield "'skipdec round MODEL --data FILE -o DIR' and an export of DIR"
    if (precision.block_size or 0) > _SMALL_BLOCK:
        yield f"--block-size {_SMALL_BLOCK}"
    if "int4" in used:
        yield "--quantize int8"
    yield "--fp16, which rounds no weight to integers"
