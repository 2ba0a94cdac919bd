"""Ranges of activations from calibration: the largest inputs of quantised products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...engines.checking import FrozenModel
from ...engines.documents import parse_json, read_file
from ...engines.errors import UsageError
from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec, json_digest
from ..architecture.architecture import quantized_parameters
from ..architecture.weights import engine_name
from .migration import Migration
from .quantize import quantization

_MAX_BYTES = 1 << 30  # of a file, which may have a factor for each input of each product

Ranges = Mapping[str, float]
"""Maximum |x| of the input of each product, by the name of its weight."""

_Range = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ActivationRanges(FrozenModel):
    """Maximum |x| of the input x of every product with quantised activations.

    >>> text = '{"layers": {"layer_000": {"fc1.weight": 4.5}}, "head": {"lm_head.weight": 9.0}}'
    >>> ActivationRanges.from_json(text, "ranges.json").of("layer_000")
    {'fc1.weight': 4.5}
    """

    layers: dict[str, dict[str, _Range]] = Field(default_factory=dict)
    head: dict[str, _Range] = Field(default_factory=dict)
    migration: Migration | None = Field(default=None, description="factors by which x was divided")

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the content, independent of the file's formatting."""
        return json_digest(self.model_dump(mode="json", exclude_none=True))

    def of(self, engine: str) -> Ranges:
        """Return the ranges of one engine by the names of its weights; empty if it has none."""
        return self.head if engine == engine_name(EngineKind.HEAD) else self.layers.get(engine, {})

    def check(self, model: ModelSpec, precision: PrecisionSpec, subject: str) -> None:
        """Check that the ranges fit ``model`` and contain what ``precision`` needs.

        ``subject`` names the file in errors. Raises UsageError naming every engine whose ranges
        are missing or belong to no product, ranges of engines that the model does not have, and
        factors that don't fit.
        """
        if problems := list(self._problems(model, precision)):
            raise UsageError(subject, *problems)

    @classmethod
    def from_json(cls, text: str | bytes, subject: str) -> ActivationRanges:
        """Parse a ranges file; ``subject`` names it in errors.

        Raises UsageError, with every problem at once, for broken JSON, unknown fields, and ranges
        that are not finite and positive.
        """
        document = parse_json(text, UsageError, subject=subject)
        return cls.parse(document, UsageError, subject)

    def _problems(self, model: ModelSpec, precision: PrecisionSpec) -> Iterator[str]:
        layers = [engine_name(EngineKind.LAYER, index) for index in range(model.num_layers)]
        if unknown := sorted(self.layers.keys() - set(layers)):
            yield f"has ranges of {', '.join(unknown)}; the model's layers: {_span(layers)}"
        for name in layers:
            yield from self._engine_problems(name, EngineKind.LAYER, model, precision)
        head = EngineKind.HEAD
        yield from self._engine_problems(engine_name(head), head, model, precision)
        if self.migration is not None:
            yield from self.migration.problems(model)

    def _engine_problems(
        self, name: str, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
    ) -> Iterator[str]:
        known = set(quantized_parameters(kind, model))
        seen = self.of(name).keys()
        if unknown := sorted(seen - known):
            yield f"{name} has ranges of {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        if quantizes_activations(kind, precision) and (missing := sorted(known - seen)):
            yield f"{name} lacks the ranges of {', '.join(missing)}; calibrate the model again"


def read_ranges(path: Path) -> ActivationRanges:
    """Read a ranges file. Raises UsageError if it can't be read or is not a ranges file."""
    content = read_file(path, UsageError, remedy="pass a ranges file", limit=_MAX_BYTES)
    return ActivationRanges.from_json(content, str(path))


def read_migration(path: Path, model: ModelSpec, precision: PrecisionSpec) -> Migration:
    """Return only the factors, for engines that scale activations per token, without ranges.

    Raises UsageError if the file can't be read, does not fit ``model``, or has no factors.
    """
    ranges = read_ranges(path)
    ranges.check(model, precision, str(path))
    if ranges.migration is None:
        raise UsageError(
            str(path),
            "has ranges but no factors; ranges alone are for TensorRT: leave --ranges out, or "
            "calibrate with --migrate 0.5",
        )
    return ranges.migration


def quantizes_activations(kind: EngineKind, precision: PrecisionSpec) -> bool:
    """Return True if TensorRT quantises the inputs of products in an engine of ``kind``."""
    choice = quantization(kind, precision)
    has_ranges = precision.activation_ranges is not None
    return choice == "fp8" or (choice == "int8" and has_ranges)


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
