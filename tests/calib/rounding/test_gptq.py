"""Test GPTQ on a grid: a worked example, its gain on correlated inputs, codes in exports."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from skipdec.calib.rounding.config import GridTarget
from skipdec.calib.rounding.gptq import Int4Grid, inverse_factor, round_weight
from skipdec.engines.manifest import EngineKind
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.quantization.packed import weight_quantizer

BOTH = pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
STORED = pytest.mark.parametrize("dtype", [torch.float16, torch.float32])


def correlated_inputs(count: int, size: int) -> torch.Tensor:
    """Return [count, size] inputs of a few directions and unequal sizes with a little noise."""
    draw = torch.Generator().manual_seed(0)
    few = torch.randn(count, 6, generator=draw) @ torch.randn(6, size, generator=draw)
    return few + 0.1 * torch.randn(count, size, generator=draw)


def normal_weight(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=draw).to(dtype).float()


def test_the_error_of_an_input_is_compensated_by_an_equal_input() -> None:
    """Codes are multiples of 1/8, set by the third and fourth weight; inputs 0 and 1 are equal."""
    weight = torch.tensor([[0.05], [0.05], [-1.0], [0.5]])
    inputs = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    grid = Int4Grid("onnxruntime", 16, torch.float32)
    assert grid.quantizer.dequantized(weight.numpy()).tolist() == [[0.0], [0.0], [-1.0], [0.5]]
    rounded = round_weight(weight, inputs.T @ inputs, grid, damping=1e-3)
    assert rounded.tolist() == [[0.0], [0.125], [-1.0], [0.5]]


@BOTH
@pytest.mark.parametrize("block_size", [16, 64])
def test_correlated_inputs_make_gptq_better_than_nearest(
    block_size: int, target: GridTarget
) -> None:
    grid = Int4Grid(target, block_size, torch.float32)
    weight = normal_weight((128, 40), torch.float32)
    inputs, others = correlated_inputs(400, 128).split(200)
    nearest = torch.from_numpy(grid.quantizer.dequantized(weight.numpy()))
    rounded = round_weight(weight, inputs.T @ inputs, grid, 0.01)
    errors = [float((others @ (each - weight)).norm()) for each in (nearest, rounded)]
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_nearest_rounding_equals_the_default_export(block_size: int) -> None:
    weight = normal_weight((128, 40), torch.float32).numpy()
    config = ExportConfig(model="opt-125m", quantize="int4", block_size=block_size)
    exported = weight_quantizer(EngineKind.LAYER, config.precision())
    assert exported is not None
    nearest = Int4Grid("onnxruntime", block_size, torch.float32).quantizer.dequantized(weight)
    assert np.array_equal(nearest, exported.dequantized(weight))


@BOTH
@STORED
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4, 1e-6])
def test_export_keeps_the_rounded_values(
    scale: float, dtype: torch.dtype, target: GridTarget
) -> None:
    grid = Int4Grid(target, 16, dtype)
    weight = (normal_weight((48, 200), torch.float32) * scale).to(dtype).float()
    weight[:16, 3] = 0
    inputs = correlated_inputs(100, 48)
    rounded = round_weight(weight, inputs.T @ inputs, grid, 0.01)
    stored = rounded.numpy().astype(str(dtype).removeprefix("torch."))
    assert np.array_equal(grid.quantizer.dequantized(stored), rounded.numpy())
    if target == "tensorrt":  # weights pass through a float16 graph
        in_float16 = grid.quantizer.dequantized(stored.astype(np.float16))
        assert np.array_equal(in_float16, rounded.numpy())
    assert rounded[:16, 3].tolist() == [0] * 16


@BOTH
@STORED
def test_export_recovers_every_float16_scale(dtype: torch.dtype, target: GridTarget) -> None:
    grid = Int4Grid(target, 16, dtype)
    extremes = torch.arange(1, 0x7800, dtype=torch.int16).view(torch.float16).float()  # to 32768
    scales = grid.scales(extremes)
    assert torch.equal(grid.scales(scales * grid.lowest_code), scales)
    normal = scales.abs() >= torch.finfo(torch.float16).smallest_normal
    errors = (scales * grid.lowest_code / extremes - 1)[normal].abs()
    assert float(errors.max()) <= 2**-8  # half a unit in the last place of bfloat16


def test_the_last_block_may_be_shorter() -> None:
    grid = Int4Grid("onnxruntime", 32, torch.float32)
    weight, inputs = normal_weight((40, 8), torch.float32), correlated_inputs(90, 40)
    rounded = round_weight(weight, inputs.T @ inputs, grid, 0.01)
    again = grid.quantizer.dequantized(rounded.numpy())
    assert np.array_equal(again, rounded.numpy())


def test_weights_of_unseen_inputs_are_rounded_to_nearest() -> None:
    grid = Int4Grid("onnxruntime", 16, torch.float32)
    weight = normal_weight((16, 30), torch.float32)
    rounded = round_weight(weight, torch.zeros(16, 16), grid, 0.01)
    nearest = torch.from_numpy(grid.quantizer.dequantized(weight.numpy()))
    assert float((rounded - weight).norm()) <= float((nearest - weight).norm())


def test_inverse_factor_is_exact_and_raises_damping_if_needed() -> None:
    inputs = correlated_inputs(50, 12)
    hessian = inputs.T @ inputs
    factor = inverse_factor(hessian.clone(), 0.01)
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(12)
    assert torch.equal(factor, factor.triu())
    torch.testing.assert_close(factor.T @ factor @ damped, torch.eye(12), rtol=1e-3, atol=1e-3)
    ones = torch.ones(300, 300)  # of rank 1: damping of 1e-9 vanishes in float32
    assert bool(inverse_factor(ones, 1e-9).isfinite().all())
