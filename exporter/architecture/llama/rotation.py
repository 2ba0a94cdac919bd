"""Rotary position embeddings (arXiv 2104.09864): reading config.json and computing frequencies.

Position p rotates the pair (x_i, x_(i + R/2)) of a head's first R elements by the angle p · f_i.
Each kind of scaling defines the frequencies f [R / 2] and a factor of all cosines and sines.
Frequencies are computed in float32, in the order of operations of transformers'
``modeling_rope_utils``. Powers are rounded from float64, so that every machine computes the same
bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ....engines.manifest import MAX_TOKENS, MAX_WIDTH
from ..model_config import ConfigReader, FamilySpec, is_number

RopeType = Literal["default", "linear", "llama3", "yarn", "longrope"]
Frequencies = NDArray[np.float32]

_DYNAMIC = "dynamic"  # equals default up to max_position_embeddings
_OBJECTS = ("rope_scaling", "rope_parameters")  # the former has priority, as in transformers
_BETA_FAST, _BETA_SLOW = 32.0, 1.0  # YaRN (arXiv 2309.00071), section 3.2
_SHORT_FACTORS = "short_factor"
_LEAST_DIVISOR = 0.5  # frequencies are at most 1; kernels rotate by at most 2 radians
_OLD_LONGROPE = ("su", "yarn")  # its names in old files of Phi-3
_WITH_PARTIAL_ROTATION = ("default", "longrope")  # all that transformers takes for Phi-3


class RotarySpec(FamilySpec):
    """The rotation of queries and keys as fields of a ModelSpec; fields of other kinds are None."""

    rotary_dim: int = Field(ge=2, le=MAX_WIDTH, multiple_of=2, description="R, up to head_dim")
    rope_type: RopeType = "default"
    rope_theta: float = Field(gt=0)
    rope_scale: float = Field(default=1.0, gt=0, description="factor of cosines and sines")
    rope_factor: float | None = Field(default=None, gt=0)
    rope_original_length: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    rope_low_freq_factor: float | None = Field(default=None, gt=0)
    rope_high_freq_factor: float | None = Field(default=None, gt=0)
    rope_beta_fast: float | None = Field(default=None, gt=0)
    rope_beta_slow: float | None = Field(default=None, gt=0)
    rope_truncate: bool | None = None
    rope_short_factors: str | None = Field(
        default=None, description="R / 2 numbers between blanks, as manifests hold no lists"
    )

    def frequencies(self) -> Frequencies:
        """Return f [R / 2] in radians per position."""
        return _KINDS[self.rope_type](self)

    def frequency_problem(self) -> str | None:
        """Return the problem with frequencies that float32 or the kernels can't take, or None."""
        with np.errstate(all="ignore"):
            frequencies = self.frequencies()
        least, most = frequencies.min(), frequencies.max()  # NaN if one is
        if least > 0 and most <= 1 / _LEAST_DIVISOR:
            return None
        return (
            f"rope: turns by {least:.2g} to {most:.2g} radians per position; allowed: above 0, "
            f"up to {1 / _LEAST_DIVISOR:g}; correct rope_theta and the fields of its scaling"
        )

    def rope_parameters(self) -> dict[str, Any]:
        """Return the rotation as transformers' ``rope_parameters``."""
        parameters: dict[str, Any] = {
            "rope_type": self.rope_type,
            "rope_theta": self.rope_theta,
            "partial_rotary_factor": self.rotary_dim / self.head_dim,
            "factor": self.rope_factor,
            "original_max_position_embeddings": self.rope_original_length,
            "low_freq_factor": self.rope_low_freq_factor,
            "high_freq_factor": self.rope_high_freq_factor,
            "beta_fast": self.rope_beta_fast,
            "beta_slow": self.rope_beta_slow,
            "truncate": self.rope_truncate,
        }
        if self.rope_type in ("yarn", "longrope"):
            parameters["attention_factor"] = self.rope_scale
        if self.rope_short_factors is not None:
            short = self.short_factors()
            parameters |= {_SHORT_FACTORS: short, "long_factor": short}
        return {key: value for key, value in parameters.items() if value is not None}

    def short_factors(self) -> list[float]:
        """Return the divisors of longrope's frequencies for texts up to the original length."""
        return [float(word) for word in (self.rope_short_factors or "").split()]


def read_rotation(
    reader: ConfigReader, head_dim: int, positions: int, default_theta: float, *, partial: bool
) -> dict[str, Any]:
    """Return the fields of a RotarySpec that config.json describes, in either of its spellings.

    Older files have ``rope_theta`` and ``rope_scaling``, transformers 5 writes ``rope_parameters``.
    ``partial``: the model type is Phi-3's, which takes ``partial_rotary_factor`` and supports only
    longrope scaling. Problems are left in ``reader``.
    """
    config = reader.config
    name = next((key for key in _OBJECTS if config.get(key)), _OBJECTS[0])
    document = config.get(name) or {}
    if not isinstance(document, dict) or any(isinstance(v, dict) for v in document.values()):
        reader.problems.append(f"{name} is {document!r:.80}; allowed: one object for all layers")
        document = {}
    known = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    kind_of_old = {"rope_type": document.get("type", "default")}
    rope = reader.within(known | kind_of_old | document, "rope: ")
    if partial and rope.config["rope_type"] in _OLD_LONGROPE:
        rope.config = {**rope.config, "rope_type": "longrope"}
    allowed = _WITH_PARTIAL_ROTATION if partial else (*get_args(RopeType), _DYNAMIC)
    kind = rope.choice("rope_type", allowed)
    share = rope.number("partial_rotary_factor", 1.0)
    if share > 1 or (share < 1 and not partial):
        rope.problems.append(
            f"partial_rotary_factor is {share}; allowed: "
            + ("a number up to 1" if partial else "1, as transformers ignores it for this model")
        )
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or rotary_dim < 2:
        rope.problems.append(f"rotates {rotary_dim} elements of a head; allowed: even numbers")
    theta = rope.number("rope_theta", default_theta)
    if theta <= 1:
        rope.problems.append(f"rope: rope_theta is {theta}; allowed: above 1")
    fields = {
        "rotary_dim": rotary_dim,
        "rope_type": "default" if kind == _DYNAMIC else kind,
        "rope_theta": theta,
    }
    if kind == _DYNAMIC:
        _divisor(rope, rope.required("factor"))
    if kind in _READERS:
        original = config.get("original_max_position_embeddings", 4096 if partial else None)
        if original is not None:  # Phi-3 has it at the top level, which has priority
            rope.config = {**rope.config, "original_max_position_embeddings": original}
        fields |= _READERS[cast("RopeType", kind)](rope, positions, rotary_dim)
    return fields


def _read_linear(rope: ConfigReader, positions: int, rotary_dim: int) -> dict[str, Any]:
    return {"rope_factor": _divisor(rope, rope.required("factor"))}


def _divisor(rope: ConfigReader, factor: float) -> float:
    """Return a factor that divides frequencies; report an extreme one as a problem."""
    if not _LEAST_DIVISOR <= factor <= MAX_TOKENS:
        rope.problems.append(
            f"rope: factor is {factor}; allowed: {_LEAST_DIVISOR} to {MAX_TOKENS:,}, since kernels "
            "turn by at most 2 radians per position, and no text is longer"
        )
    return factor


def _read_llama3(rope: ConfigReader, positions: int, rotary_dim: int) -> dict[str, Any]:
    low, high = rope.required("low_freq_factor"), rope.required("high_freq_factor")
    if low == high and rope.accepted("low_freq_factor", "high_freq_factor"):
        rope.problems.append(f"low_freq_factor and high_freq_factor are both {low}")
    return {
        "rope_factor": _divisor(rope, rope.required("factor")),
        "rope_original_length": _original_length(rope, positions),
        "rope_low_freq_factor": low,
        "rope_high_freq_factor": high,
    }


def _read_yarn(rope: ConfigReader, positions: int, rotary_dim: int) -> dict[str, Any]:
    original = _original_length(rope, positions)
    factor = rope.number("factor", positions / original)
    if rope.config.get("factor") is not None:
        _divisor(rope, factor)
    elif original > positions / _LEAST_DIVISOR and rope.accepted("max_position_embeddings"):
        rope.problems.append(
            f"rope: original_max_position_embeddings is {original}; allowed without factor: up to "
            f"{int(positions / _LEAST_DIVISOR)}, twice max_position_embeddings"
        )
    scale = _yarn_scale(factor)
    if rope.config.get("mscale") and rope.config.get("mscale_all_dim"):
        numerator = _yarn_scale(factor, rope.number("mscale", 1.0))
        scale = numerator / _yarn_scale(factor, rope.number("mscale_all_dim", 1.0))
    return {
        "rope_factor": factor,
        "rope_original_length": original,
        "rope_scale": rope.number("attention_factor", scale),
        "rope_beta_fast": rope.number("beta_fast", _BETA_FAST),
        "rope_beta_slow": rope.number("beta_slow", _BETA_SLOW),
        "rope_truncate": rope.flag("truncate", default=True),
    }


def _yarn_scale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _read_longrope(rope: ConfigReader, positions: int, rotary_dim: int) -> dict[str, Any]:
    original = _original_length(rope, positions)
    factor = rope.number("factor", positions / original)
    if original == 1:
        rope.problems.append("original_max_position_embeddings is 1; allowed: 2 or more")
        original = 2
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short = rope.config.get(_SHORT_FACTORS)
    if (
        not isinstance(short, list)
        or len(short) != rotary_dim // 2
        or not all(is_number(each) and each >= _LEAST_DIVISOR for each in short)
    ):
        rope.problems.append(
            f"{_SHORT_FACTORS} is {short!r:.80}; allowed: {rotary_dim // 2} numbers from "
            f"{_LEAST_DIVISOR} on"
        )
        short = []
    return {
        "rope_original_length": original,
        "rope_scale": rope.number("attention_factor", scale),
        "rope_short_factors": " ".join(str(float(each)) for each in short),
    }


def _original_length(rope: ConfigReader, positions: int) -> int:
    return rope.size("original_max_position_embeddings", positions, MAX_TOKENS, may_be_null=True)


_READERS: Mapping[str, Callable[[ConfigReader, int, int], dict[str, Any]]] = {
    "linear": _read_linear,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}


def _powers(spec: RotarySpec) -> Frequencies:
    """Return theta^(2i / R) [R / 2]."""
    exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float32) / np.float32(spec.rotary_dim)
    return np.array([spec.rope_theta ** float(each) for each in exponents], np.float32)


def _default(spec: RotarySpec) -> Frequencies:
    return np.float32(1) / _powers(spec)


def _linear(spec: RotarySpec) -> Frequencies:
    assert spec.rope_factor is not None
    return _default(spec) / np.float32(spec.rope_factor)


def _llama3(spec: RotarySpec) -> Frequencies:
    """Divide frequencies of long waves by the factor, keep short ones, interpolate between."""
    length, low, high = (
        spec.rope_original_length,
        spec.rope_low_freq_factor,
        spec.rope_high_freq_factor,
    )
    assert length is not None
    assert low is not None
    assert high is not None
    assert spec.rope_factor is not None
    factor, plain = np.float32(spec.rope_factor), _default(spec)
    waves = np.float32(2 * math.pi) / plain  # positions per turn
    scaled = np.where(waves > length / low, plain / factor, plain)
    smooth = (np.float32(length) / waves - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * scaled / factor + smooth * scaled
    is_between = (waves >= length / high) & (waves <= length / low)
    return np.where(is_between, between, scaled).astype(np.float32)


def _yarn(spec: RotarySpec) -> Frequencies:
    """Interpolate long waves by the factor and keep short ones, with a linear ramp between."""
    length, fast, slow = spec.rope_original_length, spec.rope_beta_fast, spec.rope_beta_slow
    assert length is not None
    assert fast is not None
    assert slow is not None
    assert spec.rope_factor is not None

    def pair(turns: float) -> float:
        """Return the (real) index of the pair that makes ``turns`` over the original length."""
        logarithm = math.log(length / (turns * 2 * math.pi))
        return spec.rotary_dim * logarithm / (2 * math.log(spec.rope_theta))

    first, last = pair(fast), pair(slow)
    if spec.rope_truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.rotary_dim - 1)
    if first == last:
        last += 0.001
    pairs = np.arange(spec.rotary_dim // 2, dtype=np.float32)
    ramp = np.clip((pairs - np.float32(first)) / np.float32(last - first), 0, 1)
    shares = 1 - ramp  # of the short waves
    powers = _powers(spec)
    long, short = 1 / (np.float32(spec.rope_factor) * powers), 1 / powers
    mixed: Frequencies = long * (1 - shares) + short * shares
    return mixed


def _longrope(spec: RotarySpec) -> Frequencies:
    divisors = np.array(spec.short_factors(), np.float32)
    return np.float32(1) / (divisors * _powers(spec))


_KINDS: Mapping[RopeType, Callable[[RotarySpec], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
