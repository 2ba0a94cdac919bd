"""Report of a comparison: errors of each tensor of each call, and the first that diverges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pydantic import Field

from ...engines.errors import VerificationError
from ..verification.answers import MeasuredModel


class TensorErrors(MeasuredModel):
    """One tensor of one call of one engine on both sides; errors as Polygraphy measures them.

    A tensor diverges if its largest error is above ``tolerance`` of the largest value, or its
    median error above ``median_tolerance``. Worked: values up to 20, an error of 0.003, tolerance
    0.0001: 0.003 / 20 = 0.00015 diverges.
    """

    engine: str
    tensor: str
    made_by: str = Field(
        default="", description="node and parameters, of inner tensors only: MatMul fc2.weight"
    )
    step: int = Field(description="0 is the prompt")
    largest_value: float = Field(description="max |reference|")
    max_absolute: float
    mean_absolute: float
    median_absolute: float
    cosine_similarity: float
    tolerance: float = Field(description="as a fraction of largest_value")
    median_tolerance: float = Field(description="as a fraction of largest_value")
    diverges: bool

    @property
    def error(self) -> float:
        """The largest error as a fraction of the largest value; infinite for NaN."""
        error = self.max_absolute / max(self.largest_value, 1e-38)
        return math.inf if math.isnan(error) else error


class ComparisonReport(MeasuredModel):
    """All engines that were compared, in the order in which a step runs them.

    ``inner`` has the inner tensors of the first engine that diverges, in the order of its graph.
    """

    subject: str = Field(description="the engines that were compared, and the target that ran them")
    reference: str = Field(description="likewise")
    outputs: tuple[TensorErrors, ...]
    inner: tuple[TensorErrors, ...] = ()

    @property
    def worst(self) -> Mapping[str, TensorErrors]:
        """The worst output of each engine, diverging ones first."""
        worst: dict[str, TensorErrors] = {}
        for each in self.outputs:
            last = worst.setdefault(each.engine, each)
            worst[each.engine] = max(last, each, key=lambda one: (one.diverges, one.error))
        return worst

    @property
    def first_divergence(self) -> TensorErrors | None:
        """The first tensor that diverges, of the first engine and call in which an output does."""
        output = _first_diverging(self.outputs)
        if output is None:
            return None
        inner = _first_diverging(each for each in self.inner if each.step == output.step)
        return inner or output

    @property
    def problem(self) -> str | None:
        """A sentence that says where the two sides diverge; None if they don't."""
        if (tensor := self.first_divergence) is None:
            return None
        seen, error, allowed = "largest", tensor.error, tensor.tolerance
        if error <= allowed:
            error = tensor.median_absolute / tensor.largest_value
            seen, allowed = "median", tensor.median_tolerance
        made_by = f" ({tensor.made_by})" if tensor.made_by else ""
        worst = self.worst.values()
        return (
            f"diverges first in {tensor.engine}, tensor {tensor.tensor}{made_by}, "
            f"step {tensor.step}: {seen} error {error:.2g} of the largest value; allowed: "
            f"{allowed:.2g} ({sum(each.diverges for each in worst)} of {len(worst)} engines "
            "diverge)"
        )

    def raise_if_diverging(self) -> None:
        """Raise VerificationError that names engine and tensor if any output diverges."""
        if (problem := self.problem) is not None:
            raise VerificationError(self.subject, problem)


def _first_diverging(tensors: Iterable[TensorErrors]) -> TensorErrors | None:
    return next((each for each in tensors if each.diverges), None)
