"""Measure the inputs of one engine's products: their ranges, and the errors of static int8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ...engines.errors import CheckpointError
from ..layerwise.engines import QuantizedProjection, observed, relative_error, squares
from .config import RangeMethod
from .histogram import RANGE_METHODS, MagnitudeHistogram

_OUTLIER_PERCENTAGE = 99.9
_UNUSED_RANGE = 1.0  # for an input that is always 0, where any scale but 0 is right


@dataclass(frozen=True)
class InputRange:
    """Input of one product: ``maximum`` of |x|, the chosen ``range``, and ``outlier_ratio``,
    ``maximum`` divided by the 99.9th percentile of |x| (0 if that is 0).
    """

    maximum: float
    range: float
    outlier_ratio: float


@dataclass(frozen=True)
class ProductErrors:
    """Errors of static int8, each as root mean square relative to the exact values.

    ``output`` includes the error of quantised weights; both outputs include the bias. ``tokens``
    were compared.
    """

    input: float
    output: float
    tokens: int


def measure_ranges(
    engine: str,
    products: Iterable[str],
    module: nn.Module,
    run: Callable[[], object],
    method: RangeMethod,
    percentage: float,
) -> dict[str, InputRange]:
    """Return the ranges of the inputs that ``run`` sends to ``products`` of ``module``, by name.

    An input that is always zero gets the range 1. Raises CheckpointError, naming ``engine``, if an
    input is NaN or infinite.
    """
    histograms = {weight: MagnitudeHistogram() for weight in products}

    def count(weight: str, inputs: Tensor, _: Tensor) -> None:
        if not histograms[weight].add(inputs.numpy()):
            raise CheckpointError(
                engine, f"the input of {weight} is NaN or infinite; check the checkpoint's weights"
            )

    with observed(module, histograms, count):
        run()
    choose = RANGE_METHODS[method]
    return {
        weight: _input_range(histogram, choose(histogram, percentage))
        for weight, histogram in histograms.items()
    }


def measure_errors(
    module: nn.Module,
    products: Mapping[str, QuantizedProjection],
    run: Callable[[], object],
) -> dict[str, ProductErrors]:
    """Compare ``products`` with ``module``'s own on the inputs that ``run`` sends through it."""
    sums = {weight: _Sums() for weight in products}

    def compare(weight: str, inputs: Tensor, output: Tensor) -> None:
        sums[weight].add(products[weight], inputs, output)

    with observed(module, products, compare):
        run()
    return {weight: total.errors() for weight, total in sums.items()}


def _input_range(histogram: MagnitudeHistogram, chosen: float) -> InputRange:
    usual = histogram.percentile(_OUTLIER_PERCENTAGE)
    return InputRange(
        maximum=histogram.maximum,
        range=chosen if chosen > 0 else histogram.maximum or _UNUSED_RANGE,
        outlier_ratio=histogram.maximum / usual if usual > 0 else 0.0,
    )


@dataclass
class _Sums:
    """Sums of squares of values and of their errors."""

    input: float = 0.0
    input_error: float = 0.0
    output: float = 0.0
    output_error: float = 0.0
    tokens: int = 0

    def add(self, product: QuantizedProjection, inputs: Tensor, output: Tensor) -> None:
        self.input += squares(inputs)
        self.input_error += squares(product.round_inputs(inputs) - inputs)
        self.output += squares(output)
        self.output_error += squares(product(inputs) - output)
        self.tokens += output[..., 0].numel()

    def errors(self) -> ProductErrors:
        return ProductErrors(
            input=relative_error(self.input_error, self.input),
            output=relative_error(self.output_error, self.output),
            tokens=self.tokens,
        )
