"""The fake TensorRT has only names that the real ones have."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

import fake_tensorrt
import pytest

SURFACES = Path(__file__).parents[2] / "data" / "tensorrt_surfaces"
CLASSES: dict[str, type] = {
    "Runtime": fake_tensorrt._Runtime,
    "ICudaEngine": fake_tensorrt._Engine,
    "IExecutionContext": fake_tensorrt._Context,
    "IRuntimeConfig": fake_tensorrt._RuntimeConfig,
}
ENUMS: tuple[type[Enum], ...] = (
    fake_tensorrt.DataType,
    fake_tensorrt.TensorIOMode,
    fake_tensorrt.Strategy,
    fake_tensorrt.ErrorCode,
)


@pytest.mark.parametrize("version", ["tensorrt-10.16.1.11", "tensorrt-rtx-1.7.1.116"])
def test_the_fake_has_only_names_of_the_real_library(version: str) -> None:
    real = json.loads((SURFACES / f"{version}.json").read_text())["classes"]
    for name, fake in CLASSES.items():
        methods = {method for method in vars(fake) if not method.startswith("_")}
        assert methods, name
        assert methods <= set(real[name]), name
    for enum in ENUMS:
        assert set(enum.__members__) <= set(real[enum.__name__]), enum.__name__
