"""Drawing a token from a row of logits with a uniform random number.

A token's weight is e^((logit − best) / temperature). The uniform number gives each token id an
exponentially distributed number, and the token with the largest weight per such number is drawn:
each with the probability of its share of the weights (the Gumbel-max trick). A draft's logits and
the model's, drawn with the same uniform number, then mostly give the same token: with probability
(1 - d) / (1 + d) or more if their distributions are at total variation distance d (Daliri, Musco
and Suresh, arXiv 2408.07978).

Weights and exponential numbers are float32 with the same bits everywhere, sums of weights float64.
So equal uniform numbers draw equal tokens from equal logits on every processor, in skipdec's
kernels and in numpy (except where the last bit of numpy's exp, wrong about once in 10⁸, decides).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...engines.backends.choice import HIGH_FACTOR, ID_FACTOR, LOW_FACTOR
from ...engines.errors import EnvironmentMismatchError
from ...engines.kernels.library import KernelDraw, find_library
from ...engines.manifest import NUM_CANDIDATES
from .sampling import SamplingParams

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_HASH_MASK = 2**31 - 1
_SQRT_HALF_BITS = np.int32(0x3F3504F3)  # of √½ in float32
# log(1 + f) = f · (1 + f · P(f)) within 1.3e-6 of it for √½ ≤ 1 + f ≤ √2; P by least squares
_LOG_COEFFICIENTS = (0.119491238, -0.185875129, 0.20449164, -0.249190715, 0.333192197, -0.500008485)


class Drawer(Protocol):
    """Draws tokens with one request's parameters: min_p, top_k, top_p, softmax, draw.

    Worked example, logits [2, 1, 0, -1], temperature 1, top_k 3, top_p 0.9: top_k leaves
    [2, 1, 0] with probabilities [0.665, 0.245, 0.090]; 0.665 + 0.245 ≥ 0.9, so top_p leaves the
    first two, drawn with 0.731 and 0.269.
    """

    def draw(self, logits: Logits, uniform: float, token_ids: TokenIds | None = None) -> int | None:
        """Return the index in ``logits`` (float32 [N], unchanged) that ``uniform`` in [0, 1) draws.

        ``token_ids`` int64 [N], ascending, are those of the logits; None: their indices. The result
        is None if a logit is NaN or +inf, or none is finite.
        """


class TokenDraw(NamedTuple):
    """The numbers with which a device guesses a token, as `engines.backends.choice` takes them.

    ``high`` and ``low`` are the `hash_keys`. ``top_p`` is 2 if it keeps all tokens.
    ``least_total`` is 1 if top_p refers to the whole vocabulary, and 0 if min_p or top_k has
    removed some tokens before. ``last`` is the index of the last candidate that top_k keeps.
    """

    inverse_temperature: float
    high: float
    low: float
    top_p: float
    least_total: float
    min_p: float
    last: int

    @classmethod
    def of(cls, params: SamplingParams, uniform: float) -> TokenDraw:
        """Return the draw of a token with ``uniform``; ``params`` are not greedy."""
        leaves_some = params.min_p > 0 or params.top_k > 0
        return cls(
            float(_inverse_temperature(params)),
            *hash_keys(uniform),
            params.top_p if params.top_p < 1 else 2.0,
            0.0 if leaves_some else 1.0,
            params.min_p,
            params.top_k - 1 if params.top_k > 0 else NUM_CANDIDATES,
        )


MOST_PROBABLE = TokenDraw(1.0, 0.0, 0.0, 1e-9, 0.0, 0.0, 0)  # top_p keeps only the first


def drawer_of(params: SamplingParams) -> Drawer:
    """Return the compiled drawer if it can run here, else numpy's."""
    try:
        library = find_library()
        if library is not None and library.instruction_set:
            margin = float(min_p_margin(params))
            inverse = float(_inverse_temperature(params))
            return KernelDraw(library, inverse, margin, params.top_k, params.top_p)
    except EnvironmentMismatchError:
        pass  # loading engines that need the library reports the error
    return NumpyDrawer(params)


@dataclass(frozen=True)
class NumpyDrawer(Drawer):
    """The numpy version of the sampling kernels, about twenty times slower."""

    params: SamplingParams

    @override
    def draw(self, logits: Logits, uniform: float, token_ids: TokenIds | None = None) -> int | None:
        params = self.params
        best = logits.max()  # NaN if there is one
        if not math.isfinite(best):
            return None
        kept, indices = logits, np.arange(logits.size)  # [kept tokens]
        if params.min_p > 0:
            indices = np.flatnonzero(kept >= best + min_p_margin(params))
            kept = logits[indices]
        if 0 < params.top_k < kept.size:
            threshold = np.partition(kept, kept.size - params.top_k)[kept.size - params.top_k]
            indices = indices[kept >= threshold]  # ties with the k-th stay
            kept = logits[indices]
        weights = weights_of((kept - best) * _inverse_temperature(params))
        if params.top_p < 1:
            keep_nucleus(weights, params.top_p)
        drawable = np.flatnonzero(weights)
        indices = indices[drawable]
        ids = indices if token_ids is None else token_ids[indices]
        return int(indices[(weights[drawable] / exponentials(ids, uniform)).argmax()])


def exponentials(token_ids: TokenIds, uniform: float) -> Logits:
    """Return a positive, exponentially distributed number of mean 1 for each token: float32 [N].

    With h the hash of a token's id and keys of ``uniform``, uniform in [0, 2³¹), it is
    -log(1 - (h + ½) / 2³¹). All operations round once, as in the kernels' exponentials.inc.h.
    """
    high, low = hash_keys(uniform)
    mixed = (token_ids * ID_FACTOR + high * HIGH_FACTOR) & _HASH_MASK
    mixed = mixed * (2 * mixed + 1) & _HASH_MASK
    mixed = (mixed + (mixed >> 15) + low * LOW_FACTOR) & _HASH_MASK
    mixed = mixed * (2 * mixed + 1) & _HASH_MASK
    mixed = (mixed + (mixed >> 15)) & _HASH_MASK
    mixed = np.minimum(mixed * (2 * mixed + 1) & _HASH_MASK, 2**31 - 65)  # more would round to 2³¹

    share = (mixed.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    bits = (np.float32(1) - share).view(np.int32)
    exponents = (bits - _SQRT_HALF_BITS) >> 23  # -log(1 - share) = -exponents · log 2 - log(1 + f)
    scaled = (bits - (exponents << 23)).view(np.float32)  # in [√½, √2)
    f = np.where(exponents == 0, -share, scaled - np.float32(1))
    p = np.full_like(f, _LOG_COEFFICIENTS[0])
    for coefficient in (*_LOG_COEFFICIENTS[1:], 1.0):
        p = p * f + np.float32(coefficient)
    numbers: Logits = -(exponents.astype(np.float32) * np.float32(math.log(2)) + p * f)
    return numbers


def hash_keys(uniform: float) -> tuple[int, int]:
    """Return the first 24 bits of ``uniform`` in [0, 1), and the 24 bits after these."""
    high, rest = divmod(uniform * 2**24, 1)
    return int(high), int(rest * 2**24)


def weights_of(exponents: Logits) -> Logits:
    """Return e^x in float32 by the polynomial of the kernels (simd/functions.inc.h), bit for bit.

    Exponents are in [-87.3, 0]; below, the weight is 0. With n the integer nearest to x / ln 2 and
    r the rest, 2^n · (1 + r + r²·P(r)).
    """
    limited = np.maximum(exponents, np.float32(-87.3))
    biased = _multiply_add(limited, 1.44269502162933349609375, 12582912.0)
    n = biased - np.float32(12582912.0)
    r = _multiply_add(n, -float.fromhex("0x1.62e43p-1"), limited)  # ln 2, in two parts
    r = _multiply_add(n, float.fromhex("0x1.05c610p-29"), r)
    p = np.full_like(r, 1.39476091e-3)
    for coefficient in (8.36987607e-3, 4.16662470e-2, 0.166665092, 0.5):
        p = _multiply_add(p, r, float(np.float32(coefficient)))
    p = _multiply_add(p * r, r, r) + np.float32(1.0)
    weights = np.ldexp(p, n.astype(np.int32))
    weights[exponents < np.float32(-87.3)] = 0.0
    return weights


def _multiply_add(a: Logits, b: Logits | float, c: Logits | float) -> Logits:
    """Return a · b + c, rounded once: a product of float32 values is exact in float64."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def min_p_margin(params: SamplingParams) -> np.float32:
    """Return the offset from the best logit to the lowest one that min_p keeps: p ≥ min_p · p_best.

    -inf without min_p.
    """
    return np.float32(
        params.temperature * math.log(params.min_p) if params.min_p > 0 else -math.inf
    )


def _inverse_temperature(params: SamplingParams) -> np.float32:
    return np.float32(1.0 / params.temperature)


def keep_nucleus(weights: Logits, top_p: float) -> None:
    """Set to 0 all but the fewest largest weights that hold ``top_p`` of the total.

    Of equal weights at the border the lower indices stay. Only weights that the share could need
    are sorted: each of the others is below the mean of a remainder of 1 - top_p of the total.
    """
    total = float(weights.sum(dtype=np.float64))
    smallest = np.float32((1 - top_p) * total / weights.size * (1 - 1e-6))
    descending = np.sort(weights[weights >= smallest])[::-1]
    sums = np.cumsum(descending, dtype=np.float64)
    count = min(int(sums.searchsorted(top_p * total)), sums.size - 1) + 1
    border = descending[count - 1]
    kept = weights >= border
    surplus = int(np.count_nonzero(kept)) - count
    if surplus:
        ties = np.flatnonzero(weights == border)
        kept[ties[ties.size - surplus :]] = False
    weights *= kept
