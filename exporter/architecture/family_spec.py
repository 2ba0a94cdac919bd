"""A family's own structure as a ModelSpec whose extra fields are declared."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, ValidationError

from ...engines.errors import UnsupportedModelError
from ...engines.manifest import ModelSpec


class FamilySpec(ModelSpec):
    """Base of a family's ModelSpec, whose subclass declares the family's own facts as fields."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, model: ModelSpec) -> Self:
        """Read the facts that ``model`` carries. Raises UnsupportedModelError for invalid ones."""
        try:
            return cls.model_validate(model.model_dump())
        except ValidationError as error:
            problems = [f"{item['loc'][0]}: {item['msg']}" for item in error.errors()]
            raise UnsupportedModelError(model.name, *problems) from error

    def model_spec(self) -> ModelSpec:
        """Return the form that manifests store, without the family's facts that are None."""
        return ModelSpec.model_validate(self.model_dump(exclude_none=True))
