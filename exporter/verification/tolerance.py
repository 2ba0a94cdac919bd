"""Tolerances of engines by number format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...engines.manifest import EngineKind, KVType, PrecisionSpec, Quantization
from ...engines.targets import target_of
from ..config import DEFAULT_TARGET, RANGED_QUANTIZATIONS
from ..quantization.quantize import quantization

_ROUNDED: Mapping[str, float] = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2, "int8": 2e-2}


@dataclass(frozen=True)
class Tolerance:
    """Errors allowed in a tensor, as fractions of its max |reference|.

    ``largest`` applies to every element, ``median`` to the worst element of the median token.
    """

    largest: float
    median: float


def engine_tolerance(
    precision: PrecisionSpec, kind: EngineKind, form: str = DEFAULT_TARGET
) -> Tolerance:
    """Return the tolerance on a CPU: float32 0.0001, float16 0.005; quantised as follows.

    With skipdec's kernels (``form``), activations are float32 and the reference has the same
    weights: only the cache is rounded, which is float32 in the reference.

    MatMulNBits at accuracy level 4 quantises activations, unlike the reference: 0.03.
    int8 is exact, but if float rounding moves an activation across the edge of its 8-bit code,
    the token is off by up to 0.03 at the end of the layer. In float32 this affects about one token
    in thirty (opt-1.3b), so the median token must be right to 0.0001; in float16 it affects all.
    """
    rounded: KVType = precision.dtype
    if target_of(form).has_float32_activations:
        rounded = precision.kv_dtype or precision.dtype if kind is EngineKind.LAYER else "float32"
    exact = _ROUNDED[rounded]
    quantize = quantization_of(precision, kind)
    if quantize == "int8":
        return Tolerance(3e-2 + exact, exact if rounded == "float32" else 3e-2 + exact)
    if quantize != "none" and precision.accuracy_level == 4:
        return Tolerance(3e-2 + exact, 3e-2 + exact)
    return Tolerance(exact, exact)


def plan_tolerance(precision: PrecisionSpec, kind: EngineKind) -> Tolerance:
    """Return the tolerance on a GPU: float32 (with TF32 products) and float16 0.005, bfloat16 0.04.

    Weights are compared after quantisation. The reference does not quantise activations; plans with
    ranges do: 0.1.
    """
    is_ranged = precision.activation_ranges is not None
    if is_ranged and quantization_of(precision, kind) in RANGED_QUANTIZATIONS:
        return Tolerance(1e-1, 1e-1)
    exact = 4e-2 if precision.dtype == "bfloat16" else 5e-3
    return Tolerance(exact, exact)


def quantization_of(precision: PrecisionSpec, kind: EngineKind) -> Quantization:
    """Return the quantisation of the weights of an engine's products."""
    return quantization(kind, precision) if kind in (EngineKind.LAYER, EngineKind.HEAD) else "none"
