"""GPTQ: round weights input by input; later inputs compensate for the errors so far.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(arXiv 2210.17323). Unlike in the paper, a block's scale is computed when its turn comes, from
weights that already compensate for earlier errors, and its largest weight keeps the lowest code, so
that the result lies on a grid that export finds again (`Int4Grid`).

Example: two inputs that are always equal, weights (0.3, 0.3), integer codes. Rounding to nearest
makes both 0, and the output 0.6·x is lost. GPTQ rounds the first to 0 and adds its error 0.3 to the
second, which is then 0.6 and becomes 1: the output is 1·x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...engines.manifest import KERNEL_BLOCK_SIZES
from ...engines.targets import target_of
from ...exporter.quantization.linear import LinearBlockQuantizer
from ...exporter.quantization.quantize import BlockQuantizer, WeightQuantizer
from .config import GridTarget

HIGHEST_CODE = 7


def round_weight(weight: Tensor, hessian: Tensor, grid: Int4Grid, damping: float) -> Tensor:
    """Round ``weight`` [K, N] to ``grid`` with little error of X·weight; return float32.

    The inputs X [n, K] are given by ``hessian`` = XᵀX, float32 [K, K], which is overwritten.
    ``damping`` times its mean diagonal is added to the diagonal, so that directions without inputs
    have some weight, and ten times more for as long as the Cholesky factorisation fails. Memory:
    three more matrices [K, K] and two [K, N].
    """
    factor = inverse_factor(hessian, damping)  # [K, K]
    remaining = weight.clone()  # [K, N]: still to be rounded, compensated for errors so far
    rounded = torch.empty_like(weight)
    for start in range(0, len(weight), grid.block_size):
        stop = min(start + grid.block_size, len(weight))
        errors = _round_block(
            remaining[start:stop], factor[start:stop, start:stop], grid, rounded[start:stop]
        )  # [k, N]
        remaining[stop:] -= factor[start:stop, stop:].T @ errors
    return rounded


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """Return upper triangular U [K, K] with UᵀU = (hessian + damping)⁻¹; overwrites ``hessian``.

    With rows and columns reversed, ``hessian`` + damping is L Lᵀ, and U is L⁻¹ reversed. This takes
    one factorisation and no full inverse.
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
    """Round the rows of ``block`` [k, N] in turn into ``rounded``; ``factor`` is its part [k, k].

    Returns the errors [k, N] for which later inputs have to compensate.
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
    """Return the scales [N] of ``block`` [k, N], and the rows [N] of its extremes.

    An extreme, the largest magnitude of its column, keeps the lowest code. A column of zeros has
    scale 1 and row -1.
    """
    rows = block.abs().argmax(dim=0)  # [N]
    scales = grid.scales(block.gather(0, rows[None])[0])
    is_zero = scales == 0
    return torch.where(is_zero, 1.0, scales), torch.where(is_zero, -1, rows)


@dataclass(frozen=True)
class Int4Grid:
    """Multiples of one scale per ``block_size`` inputs of a column, stored as ``dtype``.

    ``dtype`` is the checkpoint's, float16 or float32. A scale may be negative, because the block's
    extreme, its largest magnitude, has the lowest code whatever its sign.

    Export rounds to nearest and derives a block's scale from its extreme. If the extreme *is* the
    lowest code times the scale, in ``dtype``, export finds the same codes bit for bit. Example for
    ONNX Runtime, scale 0.125: the block (-1.0, 0.5, 0.25) has its extreme at code -8, so export
    finds the scale -1.0 / -8 and the codes (-8, 4, 2).
    """

    target: GridTarget
    block_size: int
    dtype: torch.dtype

    @property
    def lowest_code(self) -> int:
        """The code of the extreme, which is -7 for TensorRT, whose codes are symmetric."""
        return -7 if target_of(self.target).is_compiled else -8

    @property
    def quantizer(self) -> WeightQuantizer:
        """The quantiser that export uses, which rounds to nearest."""
        if target_of(self.target).is_compiled:
            return LinearBlockQuantizer(4, self.block_size, "float16")
        is_packed = self.block_size in KERNEL_BLOCK_SIZES
        return BlockQuantizer(4, self.block_size, "bfloat16" if is_packed else "float32")

    def scales(self, extremes: Tensor) -> Tensor:
        """Return the scales nearest to ``extremes / lowest_code`` that export finds again.

        Both are float32 of the same shape; a scale is 0 if the extreme is too small. TensorRT's
        scales are float16, in which seven times a scale may be rounded. Other scales are bfloat16,
        as BlockLinear4 stores them: an eighth of the extreme, which is exact.
        """
        if not target_of(self.target).is_compiled:
            return _without_the_smallest(extremes.bfloat16().to(self.dtype)) / self.lowest_code
        scales = (extremes / self.lowest_code).half().float()
        stored = _without_the_smallest((scales * self.lowest_code).half())
        return (stored / self.lowest_code).half().float()

    def codes(self, weights: Tensor, scales: Tensor) -> Tensor:
        """Return the nearest codes, float32; ``scales`` must not contain zeros."""
        return torch.clamp(torch.round(weights / scales), self.lowest_code, HIGHEST_CODE)


def _without_the_smallest(stored: Tensor) -> Tensor:
    """Return float32, 0 where rounding a small multiple to the stored type may change a code."""
    smallest = torch.finfo(stored.dtype).smallest_normal / 64
    return torch.where(stored.abs() < smallest, 0.0, stored.float())
