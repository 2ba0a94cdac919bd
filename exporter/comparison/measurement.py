"""Errors of the outputs of two runs, by Polygraphy's comparison functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from polygraphy.comparator import (
    Comparator,
    CosineSimilarityCompareFunc,
    IterationResult,
    SimpleCompareFunc,
    SimpleThreshold,
)

from ...engines.errors import SkipDecError
from ...engines.memory import Array
from ..verification.tolerance import Tolerance
from .engine_run import EngineRun
from .report import TensorErrors

_EDGES = (0.0, *(10.0**exponent for exponent in range(-8, 1)))  # of histograms


def measured(own: EngineRun, reference: EngineRun, tolerance: Tolerance) -> Iterator[TensorErrors]:
    """Run both, call by call, and yield the errors of every tensor that both made, in order.

    Raises SkipDecError if an engine fails to run, or a tensor has another shape on one side.
    """
    measure = _Measure(reference, tolerance)
    Comparator.compare_accuracy([own.results(), reference.results()], compare_func=measure)
    yield from measure.errors


class _Measure:
    """A comparison function for Polygraphy's Comparator, which keeps what it finds."""

    def __init__(self, reference: EngineRun, tolerance: Tolerance) -> None:
        self.errors: list[TensorErrors] = []
        self._reference = reference
        self._tolerance = tolerance

    def __call__(self, own: IterationResult, reference: IterationResult) -> dict[str, bool]:
        """Whether each tensor is within its tolerance, by name."""
        step = self._reference.calls[-1].step
        found = [
            tensor_errors(name, step, own[name], reference[name], self._tolerance)
            for name in reference.keys()  # noqa: SIM118  (no mapping)
            if name in own
        ]
        self.errors += found
        return {each.tensor: not each.departs for each in found}


@np.errstate(all="ignore")  # NaN and infinities diverge
def tensor_errors(
    name: str, step: int, own: Array, reference: Array, tolerance: Tolerance
) -> TensorErrors:
    """Hold one tensor of a call against its reference; ``tolerance`` is of the largest value.

    Raises SkipDecError for another shape.
    """
    if own.shape != reference.shape:
        raise SkipDecError(
            f"tensor {name}", f"is {own.shape} on one side and {reference.shape} on the other"
        )
    largest = float(np.abs(reference).max(initial=0))
    sides = (IterationResult({name: own}), IterationResult({name: reference}))
    compare = SimpleCompareFunc(atol=tolerance.largest * largest, rtol=0.0, check_error_stat="max")
    found = compare(*sides)[name]
    by_median = SimpleThreshold("median", atol=tolerance.median * largest, rtol=0.0)
    cosine = CosineSimilarityCompareFunc()(*sides)[name]
    return TensorErrors(
        tensor=name,
        step=step,
        largest_value=largest,
        max_absolute=found.max_absdiff,
        mean_absolute=found.mean_absdiff,
        median_absolute=found.median_absdiff,
        max_relative=found.max_reldiff,
        mean_relative=found.mean_reldiff,
        median_relative=found.median_reldiff,
        cosine_similarity=cosine.cosine_similarity,
        tolerance=tolerance.largest,
        median_tolerance=tolerance.median,
        departs=not (found and by_median.passed(found.metric_values())),
        histogram=_histogram(np.abs(np.subtract(own, reference, dtype=np.float32)), largest),
    )


def _histogram(differences: Array, largest: float) -> tuple[int, ...]:
    """Elements below each edge and not below the one before; then all others, NaN among them."""
    scaled = differences / max(largest, float(np.finfo(np.float32).tiny))
    below = [int(np.count_nonzero(scaled < edge)) for edge in _EDGES[1:]]
    return tuple(int(count) for count in np.diff([0, *below, differences.size]))
