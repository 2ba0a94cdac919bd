"""Opening refuses weights packed in an order that the kernels cannot read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from skipdec import BundleError, EngineBundle, Generator
from skipdec.engines.kernels.library import find_library

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


def test_a_layer_packed_in_another_order_is_refused_before_it_runs(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    """Sizes and graphs are right and hashes are unchecked, so only the operator can notice."""
    path = tmp_path / "bundle"
    shutil.copytree(exported("pre_norm", quantize="int8", kernels="skipdec"), path)
    layer = EngineBundle.open(path).manifest.layers[1]
    (weights,) = layer.weights
    packed = np.fromfile(path / weights, np.uint8)
    np.roll(packed, 4).tofile(path / weights)  # codes of the next column
    with pytest.raises(BundleError, match="weight and offset disagree") as refused:
        Generator.open(path, verify="graphs")
    assert layer.name in str(refused.value)
