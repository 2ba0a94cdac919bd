"""The templates of a bundle, from which prompts are made."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .. import constants
from .fields import Record, RelativePath

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
