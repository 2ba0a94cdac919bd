"""Choose factors, from real texts, that move outliers from activations into weights."""

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


def choose_factors(
    kind: EngineKind,
    model: ModelSpec,
    module: nn.Module,
    run: Callable[[], object],
    alpha: float,
) -> dict[str, list[float]]:
    """Return factors for the products of ``module`` that can have them, from inputs of ``run``."""
    maxima: dict[str, Tensor] = {}  # max|x| of each input channel [K], by weight name

    def update(weight: str, inputs: Tensor, _: Tensor) -> None:
        largest = inputs.flatten(0, -2).abs().amax(0)  # [K]
        maxima[weight] = torch.maximum(maxima.get(weight, largest), largest)

    products = quantized_parameters(kind, model)
    with observed(module, products, update):
        run()
    fixed = fixed_inputs(kind, model)
    factors = {}
    for name in products:
        if name not in fixed:
            projection = module.get_submodule(name.removesuffix(".weight"))
            assert isinstance(projection, Projection), name
            weights = projection.weight.abs().amax(1)  # [K]
            factors[name] = smoothing_factors(maxima[name].numpy(), weights.numpy(), alpha)
    return factors


def smoothing_factors(
    activations: NDArray[np.float32], weights: NDArray[np.float32], alpha: float
) -> list[float]:
    """Return ``max|x|^alpha / max|w|^(1 - alpha)`` of each channel (SmoothQuant, equation 4).

    Channels that are always 0 in x or in w get 1. Factors are rounded to four digits, because any
    value gives an exact migration.

    >>> smoothing_factors(np.float32([16, 1, 0]), np.float32([0.25, 1, 1]), 0.5)
    [8.0, 1.0, 1.0]
    """
    used = (activations > 0) & (weights > 0)
    x, w = np.where(used, activations, 1), np.where(used, weights, 1)
    factors = x.astype(np.float64) ** alpha / w.astype(np.float64) ** (1 - alpha)
    return [float(f"{factor:.4g}") for factor in factors]


class Migrator:
    """Chooses factors engine by engine, and also runs each engine without them.

    The ``held_out`` texts run through the unmigrated engines in every static format, with ranges of
    their own, so that ``losses`` show what migration gains.
    """

    def __init__(self, plan: CalibrationPlan, held_out: HiddenStates, alpha: float) -> None:
        self._model, self._reader = plan.model, plan.checkpoint.reader
        self._config = plan.config
        self._alpha = alpha
        self._static = {name: held_out.copy() for name in STATIC_FORMATS}
        self._factors: dict[str, dict[str, list[float]]] = {}

    @property
    def losses(self) -> dict[StaticFormat, float]:
        """Losses without migration, available once the head has run."""
        return {name: states.mean_loss for name, states in self._static.items()}

    @property
    def migration(self) -> Migration:
        """The factors of all engines so far."""
        head = engine_name(EngineKind.HEAD)
        layers = {name: factors for name, factors in self._factors.items() if name != head}
        return Migration(alpha=self._alpha, layers=layers, head=self._factors.get(head, {}))

    def migrated(
        self, kind: EngineKind, layer_index: int | None, observed: HiddenStates
    ) -> TensorReader:
        """Return an engine's tensors, migrated according to its inputs from ``observed``.

        Its unmigrated weights are in memory only during the call. For the head, the call also
        measures the losses.
        """
        name, config = engine_name(kind, layer_index), self._config
        module = load_engine(kind, self._model, self._reader, layer_index)
        run = partial(observed.read, layer_index, module)
        products = quantized_parameters(kind, self._model)
        inputs = measure_ranges(name, products, module, run, config.percentile)
        ranges = {weight: found.range for weight, found in inputs.items()}
        for static_format, states in self._static.items():
            with replaced(module, quantized_products(module, static_format, ranges)):
                states.run(layer_index, module)
        factors = choose_factors(kind, self._model, module, run, self._alpha)
        self._factors[name] = factors
        return migrated_reader(self._reader, factors, kind, layer_index, self._model)
