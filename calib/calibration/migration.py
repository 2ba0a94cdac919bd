"""Choose, from real texts, how much of each input channel moves from activations into weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...engines.manifest import EngineKind, ModelSpec
from ...exporter.architecture.architecture import quantized_parameters
from ...exporter.architecture.modules import Projection
from ...exporter.architecture.weights import TensorReader, engine_name
from ...exporter.quantization.migration import Migration, fixed_inputs, migrated_reader
from ..layerwise.engines import (
    STATIC_FORMATS,
    StaticFormat,
    load_engine,
    observed,
    quantized_products,
    replaced,
)
from ..layerwise.texts import HiddenStates
from .plan import CalibrationPlan
from .products import measure_ranges
from .report import HEAD


class ChannelMaxima:
    """max|x| of each input channel of an engine's products, by weight name."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}  # [K]

    def add(self, weight: str, inputs: Tensor, _: Tensor) -> None:
        """Update the maxima with the inputs [..., K] of one product."""
        largest = inputs.flatten(0, -2).abs().amax(0)  # [K]
        seen = self.values.get(weight)
        self.values[weight] = largest if seen is None else torch.maximum(seen, largest)


def choose_factors(
    kind: EngineKind,
    model: ModelSpec,
    module: nn.Module,
    run: Callable[[], object],
    alpha: float,
) -> dict[str, list[float]]:
    """Return factors for the products of ``module`` that can have them, for inputs of ``run``."""
    maxima = ChannelMaxima()
    products = quantized_parameters(kind, model)
    with observed(module, products, maxima.add):
        run()
    fixed = fixed_inputs(kind, model)
    factors = {}
    for name in products:
        if name not in fixed:
            projection = module.get_submodule(name.removesuffix(".weight"))
            assert isinstance(projection, Projection), name
            weights = projection.weight.abs().amax(1)  # [K]
            factors[name] = smoothing_factors(maxima.values[name].numpy(), weights.numpy(), alpha)
    return factors


def smoothing_factors(
    activations: NDArray[np.float32], weights: NDArray[np.float32], alpha: float
) -> list[float]:
    """Return ``max|x|^alpha / max|w|^(1 - alpha)`` of each channel (SmoothQuant, equation 4).

    Channels that are always 0 in x or in w keep 1. Rounded to four digits, as any factor is exact.

    >>> smoothing_factors(np.float32([16, 1, 0]), np.float32([0.25, 1, 1]), 0.5)
    [8.0, 1.0, 1.0]
    """
    used = (activations > 0) & (weights > 0)
    x, w = np.where(used, activations, 1), np.where(used, weights, 1)
    factors = x.astype(np.float64) ** alpha / w.astype(np.float64) ** (1 - alpha)
    return [float(f"{factor:.4g}") for factor in factors]


class Migrator:
    """Chooses the factors engine by engine, and also runs each engine without them.

    The ``held_out`` texts go through the unmigrated engines in every static format, with ranges
    of their own, so that ``losses`` show what migration gains.
    """

    def __init__(self, plan: CalibrationPlan, held_out: HiddenStates, alpha: float) -> None:
        self._model, self._reader = plan.model, plan.checkpoint.reader
        self._config = plan.config
        self._alpha = alpha
        self._static = {name: held_out.copy() for name in STATIC_FORMATS}
        self._factors: dict[str, dict[str, list[float]]] = {}
        self.losses: dict[StaticFormat, float] = {}

    @property
    def migration(self) -> Migration:
        """Factors of all engines so far."""
        layers = {name: factors for name, factors in self._factors.items() if name != HEAD}
        return Migration(alpha=self._alpha, layers=layers, head=self._factors.get(HEAD, {}))

    def layer(self, index: int, observed: HiddenStates) -> TensorReader:
        """Return a layer's tensors, migrated according to its inputs from ``observed``."""

        def run_static(static_format: StaticFormat, layer: nn.Module) -> None:
            self._static[static_format].advance(index, layer)

        return self._choose(
            EngineKind.LAYER, index, lambda layer: observed.read(index, layer), run_static
        )

    def head(self, observed: HiddenStates) -> TensorReader:
        """Return the head's tensors, migrated as in ``layer``; this also fills in ``losses``."""

        def run_static(static_format: StaticFormat, head: nn.Module) -> None:
            self.losses[static_format] = float(self._static[static_format].losses(head).mean())

        return self._choose(EngineKind.HEAD, None, lambda head: observed.losses(head), run_static)

    def _choose(
        self,
        kind: EngineKind,
        layer_index: int | None,
        observe: Callable[[nn.Module], object],
        run_static: Callable[[StaticFormat, nn.Module], None],
    ) -> TensorReader:
        """Choose an engine's factors; its unmigrated weights are in memory only during the call."""
        name, config = engine_name(kind, layer_index), self._config
        module = load_engine(kind, self._model, self._reader, layer_index)
        run = partial(observe, module)
        products = quantized_parameters(kind, self._model)
        inputs = measure_ranges(name, products, module, run, config.method, config.percentage)
        ranges = {weight: found.range for weight, found in inputs.items()}
        for static_format in STATIC_FORMATS:
            with replaced(module, quantized_products(module, static_format, ranges)):
                run_static(static_format, module)
        factors = choose_factors(kind, self._model, module, run, self._alpha)
        self._factors[name] = factors
        return migrated_reader(self._reader, factors, kind, layer_index, self._model)
