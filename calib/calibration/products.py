"""Measure the input ranges of one engine's products, and the errors of static int8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ...engines.errors import CheckpointError
from ..layerwise.engines import QuantizedProjection, SquareSums, observed

# A bin is a float32's exponent and the upper 10 bits of its mantissa. Bins are 0.1 % wide at every
# magnitude, so no range has to be known in advance, and partial histograms add up exactly.
_DROPPED_BITS = 13
_NUM_BINS = 1 << (31 - _DROPPED_BITS)
_INFINITY_BIN = 0x7F800000 >> _DROPPED_BITS
_BLOCK = 1 << 20  # values counted at a time
_OUTLIER_PERCENTAGE = 99.9
_UNUSED_RANGE = 1.0  # for an input that is always 0; any scale except 0 would do


@dataclass(frozen=True)
class InputRange:
    """Input of one product: ``maximum`` of |x|, the chosen ``range``, and ``outlier_ratio``.

    The ratio is ``maximum`` divided by the 99.9th percentile of |x| (0 if that is 0).
    """

    maximum: float
    range: float
    outlier_ratio: float


@dataclass(frozen=True)
class ProductErrors:
    """Errors of static int8: root mean squares relative to those of the exact values.

    ``output_error`` includes the error of quantised weights; both outputs include the bias.
    ``tokens`` is the number of tokens compared.
    """

    input_error: float
    output_error: float
    tokens: int


def measure_ranges(
    engine: str,
    products: Iterable[str],
    module: nn.Module,
    run: Callable[[], object],
    percentage: float,
) -> dict[str, InputRange]:
    """Return the ranges of the inputs that ``run`` sends to ``products`` of ``module``, by name.

    A range includes ``percentage`` of an input's magnitudes. An input that is always zero gets the
    range 1. Raises CheckpointError, naming ``engine``, if an input is NaN or infinite.
    """
    histograms = {weight: MagnitudeHistogram() for weight in products}

    def count(weight: str, inputs: Tensor, _: Tensor) -> None:
        if not histograms[weight].add(inputs.numpy()):
            raise CheckpointError(
                engine, f"the input of {weight} is NaN or infinite; check the checkpoint's weights"
            )

    with observed(module, histograms, count):
        run()
    return {
        weight: _input_range(histogram, histogram.percentile(percentage))
        for weight, histogram in histograms.items()
    }


def measure_errors(
    module: nn.Module,
    products: Mapping[str, QuantizedProjection],
    run: Callable[[], object],
) -> dict[str, ProductErrors]:
    """Compare ``products`` with those of ``module`` on the inputs that ``run`` sends through it."""
    sums = {weight: SquareSums() for weight in products}

    def compare(weight: str, inputs: Tensor, output: Tensor) -> None:
        product = products[weight]
        sums[weight].add(
            input=inputs,
            input_error=product.round_inputs(inputs) - inputs,
            output=output,
            output_error=product(inputs) - output,
        )

    with observed(module, products, compare):
        run()
    return {
        weight: ProductErrors(
            input_error=total.relative("input_error", "input"),
            output_error=total.relative("output_error", "output"),
            tokens=total.tokens,
        )
        for weight, total in sums.items()
    }


def _input_range(histogram: MagnitudeHistogram, chosen: float) -> InputRange:
    usual = histogram.percentile(_OUTLIER_PERCENTAGE)
    return InputRange(
        maximum=histogram.maximum,
        range=chosen if chosen > 0 else histogram.maximum or _UNUSED_RANGE,
        outlier_ratio=histogram.maximum / usual if usual > 0 else 0.0,
    )


class MagnitudeHistogram:
    """Counts |x| of float32 values in 2 MiB, however many there are.

    >>> histogram = MagnitudeHistogram()
    >>> histogram.add(np.array([0.5, -2.0, 1.0, 0.0], np.float32))
    True
    >>> histogram.maximum
    2.0
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BINS, np.int64)
        self.maximum = 0.0

    @property
    def count(self) -> int:
        """Number of values added."""
        return int(self._counts.sum())

    def add(self, values: NDArray[np.float32]) -> bool:
        """Count ``values`` of any shape; if one is not finite, stop early and return False."""
        bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
        for start in range(0, bits.size, _BLOCK):
            magnitudes = bits[start : start + _BLOCK] & np.uint32(0x7FFFFFFF)
            counts = np.bincount(magnitudes >> _DROPPED_BITS, minlength=_NUM_BINS)
            if counts[_INFINITY_BIN:].any():
                return False
            self._counts += counts
            self.maximum = max(self.maximum, float(magnitudes.max().view(np.float32)))
        return True

    def percentile(self, percentage: float) -> float:
        """Return the magnitude that ``percentage`` of all values do not exceed, to 0.1 %.

        It is never below the exact value or above the maximum, and 0.0 if there are no values.
        """
        wanted = np.ceil(self.count * percentage / 100)
        index = int(np.searchsorted(np.cumsum(self._counts), wanted))
        # The first bin holds zeros and values that no int8 or fp8 scale distinguishes from zero.
        edge = np.uint32((index + 1) << _DROPPED_BITS).view(np.float32)
        return min(float(edge), self.maximum) if index else 0.0
