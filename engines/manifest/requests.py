"""A bundle's templates of prompts, and its defaults of sampling parameters."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from .. import constants
from .fields import Record, RelativePath, without_nulls

PROMPT_PLACEHOLDER = constants.text("prompt_placeholder")  # the prompt's place in a template


def _holds_the_prompt(template: str) -> str:
    if template.count(PROMPT_PLACEHOLDER) != 1:
        raise ValueError(f"{template!r} is no template; allowed: a text with {{prompt}} once")
    return template


PromptTemplate = Annotated[str, AfterValidator(_holds_the_prompt)]


class ChatFile(Record):
    """The chat template of a bundle: a Jinja template that renders messages as a prompt."""

    path: RelativePath
    special_tokens: dict[str, str | list[str]] = Field(
        default_factory=dict, description="the template's variables for them, e.g. bos_token"
    )


class SamplingDefaults(Record):
    """The sampling parameters in the checkpoint's generation_config.json; absent ones are None."""

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
        """The parameters that are set, by their names in SamplingParams."""
        return {name: value for name, value in self if value is not None}
