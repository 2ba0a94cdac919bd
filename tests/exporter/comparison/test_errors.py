from __future__ import annotations

import numpy as np
import pytest

from skipdec.engines.errors import SkipDecError
from skipdec.exporter.comparison.engines import tensor_errors
from skipdec.exporter.verification.tolerance import Tolerance

REFERENCE = np.array([[20.0, -1.0, 0.0, 2.0]], np.float32)


def test_errors_are_fractions_of_the_largest_value() -> None:
    own = REFERENCE + np.float32([[0.0, 0.01, 0.0, 0.03]])
    errors = tensor_errors("head", "logits", 3, own, REFERENCE, Tolerance(1e-3, 1e-3))
    assert (errors.largest_value, errors.step, errors.diverges) == (20.0, 3, True)
    assert errors.max_absolute == pytest.approx(0.03, rel=1e-3)
    assert errors.error == pytest.approx(0.0015, rel=1e-3)
    assert 0.99 < errors.cosine_similarity < 1


@pytest.mark.parametrize(("largest", "median", "diverges"), [(2e-3, 1e-3, False), (1, 1e-5, True)])
def test_either_tolerance_decides(largest: float, median: float, diverges: bool) -> None:
    own = REFERENCE + np.float32(0.002)
    tolerance = Tolerance(largest, median)
    assert tensor_errors("head", "logits", 0, own, REFERENCE, tolerance).diverges is diverges


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_on_either_side_diverge(bad: float) -> None:
    broken = REFERENCE.copy()
    broken[0, 1] = bad
    for sides in ((broken, REFERENCE), (REFERENCE, broken), (broken, broken)):
        errors = tensor_errors("head", "logits", 0, *sides, Tolerance(1, 1))
        assert (errors.diverges, errors.error) == (True, np.inf)


def test_a_different_shape_is_named() -> None:
    with pytest.raises(SkipDecError, match=r"logits \| is \(1, 2\) on one side and \(1, 4\)"):
        tensor_errors("head", "logits", 0, REFERENCE[:, :2], REFERENCE, Tolerance(1, 1))
