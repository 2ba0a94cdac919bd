"""Report of a comparison: errors of each tensor of each call, and the first that diverges."""

from __future__ import annotations

import math

from pydantic import Field

from ...engines.errors import VerificationError
from ..verification.answers import MeasuredModel


class TensorErrors(MeasuredModel):
    """One tensor of one call on both sides. Relative errors are those of single elements.

    A tensor diverges if its largest error is above ``tolerance`` of the largest value, or its
    median error above ``median_tolerance``. Worked: values up to 20, an error of 0.003, tolerance
    0.0001: 0.003 / 20 = 0.00015 diverges.
    """

    tensor: str
    made_by: str = Field(
        default="", description="node and parameters, of inner tensors: MatMul fc2.weight"
    )
    step: int = Field(description="0 is the prompt; of a recording, as recorded")
    largest_value: float = Field(description="max |reference|")
    max_absolute: float
    mean_absolute: float
    median_absolute: float
    max_relative: float
    mean_relative: float
    median_relative: float
    cosine_similarity: float
    tolerance: float = Field(description="as a fraction of largest_value")
    median_tolerance: float = Field(description="as a fraction of largest_value")
    departs: bool
    histogram: tuple[int, ...] = Field(
        description="elements by error, as a fraction of largest_value: below 1e-8, below 1e-7, "
        "… below 1, and the rest, NaN included"
    )

    @property
    def error(self) -> float:
        """The largest error as a fraction of the largest value; infinite for NaN."""
        if math.isnan(self.max_absolute):
            return math.inf
        return self.max_absolute / max(self.largest_value, 1e-38)


class EngineComparison(MeasuredModel):
    """One engine; ``inner`` has its inner tensors in the order of the graph, if it was examined."""

    engine: str
    calls: int
    outputs: tuple[TensorErrors, ...]
    inner: tuple[TensorErrors, ...] = ()

    @property
    def worst(self) -> TensorErrors | None:
        """The output that is worst, diverging ones first; None if the engine was not called."""
        return max(self.outputs, key=lambda each: (each.departs, each.error), default=None)

    @property
    def first_departing(self) -> TensorErrors | None:
        """The first tensor that diverges, of the first call in which an output does."""
        outputs = [each for each in self.outputs if each.departs]
        if not outputs:
            return None
        inner = [each for each in self.inner if each.departs and each.step == outputs[0].step]
        return (inner or outputs)[0]


class ComparisonReport(MeasuredModel):
    """All engines that were compared, in the order in which a step runs them."""

    subject: str = Field(description="the engines that were compared, and the target that ran them")
    reference: str = Field(description="likewise")
    inputs: str
    stitched: bool
    engines: tuple[EngineComparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def first_departure(self) -> tuple[str, TensorErrors] | None:
        """The first engine and tensor of a step that diverge; None if none does."""
        for engine in self.engines:
            if (tensor := engine.first_departing) is not None:
                return engine.engine, tensor
        return None

    @property
    def problem(self) -> str | None:
        """A sentence that says where the two sides diverge; None if they don't."""
        if self.first_departure is None:
            return None
        engine, tensor = self.first_departure
        seen, error, allowed = "largest", tensor.error, tensor.tolerance
        if error <= allowed:
            error = tensor.median_absolute / tensor.largest_value
            seen, allowed = "median", tensor.median_tolerance
        made_by = f" ({tensor.made_by})" if tensor.made_by else ""
        departing = sum(each.first_departing is not None for each in self.engines)
        return (
            f"diverges first in {engine}, tensor {tensor.tensor}{made_by}, step {tensor.step}: "
            f"{seen} error {error:.2g} of the largest value; allowed: {allowed:.2g} ({departing} "
            f"of {len(self.engines)} engines diverge)"
        )

    def raise_if_departed(self) -> None:
        """Raise VerificationError that names engine and tensor if any output diverges."""
        if (problem := self.problem) is not None:
            raise VerificationError(self.subject, problem)
