"""SamplingParams: how tokens are chosen and when a completion ends, with vLLM's field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ...engines.errors import UsageError

GREEDY_TEMPERATURE = 1e-5  # below it sampling is greedy, as in vLLM


def _as_tuple(value: object) -> object:
    """One string, a list or None → a tuple; anything else is left to the field's own check."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


StopString = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]


class SamplingParams(BaseModel):
    """Sampling and stopping of one request; immutable, unknown fields refused.

    A field's description is also what an error says is allowed. All problems come in one
    UsageError:

    >>> SamplingParams(top_p=1.5, n=0)
    Traceback (most recent call last):
    skipdec.engines.errors.UsageError: SamplingParams | 2 problems:
      - n is 0; allowed: an integer from 1: completions per prompt
      - top_p is 1.5; allowed: a number above 0 and up to 1; 1 is off
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    n: int = Field(default=1, ge=1, description="an integer from 1: completions per prompt")
    presence_penalty: float = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="a number from -2 to 2, subtracted once from every token in the output",
    )
    frequency_penalty: float = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="a number from -2 to 2, subtracted once per occurrence in the output",
    )
    repetition_penalty: float = Field(
        default=1.0,
        gt=0,
        description="a number above 0; above 1 makes tokens of prompt and output less likely",
    )
    temperature: float = Field(default=1.0, ge=0, description="a number from 0; 0 is greedy")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="a number above 0 and up to 1; 1 is off"
    )
    top_k: int = Field(default=0, ge=-1, description="an integer from 1; 0 and -1 are off")
    min_p: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="a number from 0 to 1: least probability relative to the best token's",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**64, description="an integer from 0 to 2**64 - 1, or None"
    )
    stop: Annotated[tuple[StopString, ...], BeforeValidator(_as_tuple)] = Field(
        default=(), description="a non-empty string or a list of such"
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], BeforeValidator(_as_tuple)] = Field(
        default=(), description="a list of token ids from 0"
    )
    ignore_eos: bool = Field(default=False, description="True or False")
    max_tokens: int | None = Field(
        default=16, ge=1, description="an integer from 1, or None: up to the model's limit"
    )
    min_tokens: int = Field(default=0, ge=0, description="an integer from 0 to max_tokens")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        description="an integer from 0: most probable tokens reported beside the chosen one",
    )
    include_stop_str_in_output: bool = Field(default=False, description="True or False")
    skip_special_tokens: bool = Field(default=True, description="True or False")

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401  (checked by pydantic)
        refused: set[str] = set()
        problems: list[str] = []
        try:
            super().__init__(**fields)
        except ValidationError as error:
            for item in error.errors():
                name = str(item["loc"][0])
                if name not in refused:
                    refused.add(name)
                    problems.append(self._problem(name, fields.get(name)))
        accepted = {name: field.default for name, field in type(self).model_fields.items()} | fields
        problems += _combination_problems(accepted, refused)
        if problems:
            raise UsageError("SamplingParams", *problems)

    @classmethod
    def _problem(cls, name: str, value: object) -> str:
        if name not in cls.model_fields:
            return f"{name!r} is unknown; allowed: {', '.join(cls.model_fields)}"
        return f"{name} is {value!r}; allowed: {cls.model_fields[name].description}"

    def updated(self, **changes: Any) -> SamplingParams:  # noqa: ANN401  (checked by pydantic)
        """Return a copy with some fields changed, checked like a new one."""
        return SamplingParams(**(dict(self) | changes))

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    def vocabulary_problems(self, vocab_size: int) -> list[str]:
        """Return what asks for more than a vocabulary of ``vocab_size`` tokens holds."""
        problems = [
            f"stop_token_ids has {token_id}; allowed: 0 to {vocab_size - 1}, the model's vocabulary"
            for token_id in self.stop_token_ids
            if token_id >= vocab_size
        ]
        if (self.logprobs or 0) > vocab_size:
            problems.append(f"logprobs is {self.logprobs}; the vocabulary has {vocab_size} tokens")
        return problems


def _combination_problems(fields: Mapping[str, Any], refused: set[str]) -> list[str]:
    """Problems of fields that are fine alone; pairs with a refused field are left out."""
    problems = []
    if refused.isdisjoint(("min_tokens", "max_tokens")):
        minimum, maximum = fields["min_tokens"], fields["max_tokens"]
        if maximum is not None and minimum > maximum:
            problems.append(
                f"min_tokens is {minimum}; allowed: 0 to max_tokens, which is {maximum}"
            )
    if (
        refused.isdisjoint(("n", "temperature"))
        and fields["n"] > 1
        and fields["temperature"] < GREEDY_TEMPERATURE
    ):
        problems.append(
            f"n is {fields['n']} with temperature {fields['temperature']}; greedy completions "
            "are all alike: set n to 1 or the temperature above 0"
        )
    return problems
