"""GPTQ: weights rounded one input after another, later inputs making up for the errors so far.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(arXiv 2210.17323). What differs is ours: a block's scale is taken when its turn comes, from weights
that make up for all errors before it, and its largest weight stays at the lowest code, so that the
result lies on a grid which export finds again (``grid.py``).

Worked, two inputs that are always equal, weights (0.3, 0.3), whole numbers allowed: to nearest
both become 0 and the output 0.6·x is lost. Here the first becomes 0 and its error 0.3 moves to the
second, which is then 0.6 and becomes 1: the output is 1·x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .grid import Int4Grid


def round_weight(weight: Tensor, hessian: Tensor, grid: Int4Grid, damping: float) -> Tensor:
    """``weight`` [K, N] on ``grid``, float32, so that inputs X [n, K] with XᵀX = ``hessian`` [K, K]
    give X·weight with little error.

    ``hessian``, float32, is overwritten. ``damping`` times its mean diagonal is added to the
    diagonal, ten times more as long as the sum can't be factorised: directions that no input took
    then count a little. Memory: three more matrices [K, K], and two [K, N].
    """
    factor = inverse_factor(hessian, damping)  # [K, K]
    remaining = weight.clone()  # [K, N]: what is still to be rounded, errors so far made up for
    rounded = torch.empty_like(weight)
    for start in range(0, len(weight), grid.block_size):
        stop = min(start + grid.block_size, len(weight))
        errors = _round_block(
            remaining[start:stop], factor[start:stop, start:stop], grid, rounded[start:stop]
        )  # [k, N]
        remaining[stop:] -= factor[start:stop, stop:].T @ errors
    return rounded


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """The upper triangular U [K, K] with UᵀU = (hessian + damping)⁻¹; ``hessian`` is overwritten.

    With rows and columns reversed, ``hessian`` + damping is L Lᵀ; so U is L⁻¹ reversed: one
    factorisation, no inverse of the whole.
    """
    mean = hessian.diagonal().mean().clamp_min(torch.finfo(hessian.dtype).tiny)
    added = 0.0
    while True:
        hessian.diagonal().add_((damping - added) * mean)
        lower, failed = torch.linalg.cholesky_ex(hessian.flip(0, 1))
        if not failed:
            break
        added, damping = damping, 10 * damping
    identity = torch.eye(len(lower), dtype=lower.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(lower, identity, upper=False)
    del lower, identity
    return inverse.flip(0, 1)


def _round_block(block: Tensor, factor: Tensor, grid: Int4Grid, rounded: Tensor) -> Tensor:
    """Round the rows of ``block`` [k, N] in turn into ``rounded``; ``factor`` [k, k] is its own.

    Returns the errors [k, N] that inputs behind the block have to make up for.
    """
    scales, held = _scales(block, grid)
    errors = torch.empty_like(block)
    for row in range(len(block)):
        codes = torch.where(held == row, grid.lowest_code, grid.codes(block[row], scales))  # [N]
        rounded[row] = codes * scales
        errors[row] = (block[row] - rounded[row]) / factor[row, row]
        block[row + 1 :] -= torch.outer(factor[row, row + 1 :], errors[row])
    return errors


def _scales(block: Tensor, grid: Int4Grid) -> tuple[Tensor, Tensor]:
    """The scales [N] of ``block`` [k, N], and the rows [N] whose weights stay at the lowest code.

    Those are the largest in magnitude. A column of zeros has the scale 1 and no such row.
    """
    rows = block.abs().argmax(dim=0)  # [N]
    scales = grid.scales(block.gather(0, rows[None])[0])
    is_zero = scales == 0
    return torch.where(is_zero, 1.0, scales), torch.where(is_zero, -1, rows)
