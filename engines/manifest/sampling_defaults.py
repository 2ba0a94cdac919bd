"""The sampling parameters of a bundle for requests that give none of their own."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from .fields import Record, without_nulls


class SamplingDefaults(Record):
    """What the checkpoint's authors recommend in generation_config.json; absent: none."""

    temperature: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1, le=2**63 - 1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_nulls(serialize(self), *type(self).model_fields)

    @property
    def given(self) -> dict[str, int | float]:
        """The parameters that are there, by the names that SamplingParams has for them."""
        return {name: value for name, value in self if value is not None}
