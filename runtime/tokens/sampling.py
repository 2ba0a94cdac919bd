"""SamplingParams: sampling and stopping of a request, with vLLM's field names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import BeforeValidator, ConfigDict, FailFast, Field

from ...engines.checking import Option, ValidatedConfig, plain
from ...engines.constants import integer
from ...engines.errors import did_you_mean, shown

GREEDY_TEMPERATURE = 1e-5  # below it sampling is greedy, as in vLLM
DEFAULT_MAX_TOKENS = integer("default_max_tokens")
MAX_COMPLETIONS = integer("max_completions")  # of one prompt
MAX_STOP_STRINGS = integer("max_stop_strings")  # each is searched for at every token
MAX_STOP_LENGTH = integer("max_stop_length")
MAX_LOGPROBS = integer("max_logprobs")  # of one prompt, all completions: about 250 MB


def as_tuple(value: object) -> object:
    """Make a tuple of a string, a list or None; the field checks anything else."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def _none_if_false(value: object) -> object:
    return None if value is False else value


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
TokenId = Annotated[int, Field(ge=0)]
LogprobCount = Annotated[int | None, BeforeValidator(_none_if_false)]
"""Number of tokens reported with each chosen one; with None or False, not even that is reported."""
if TYPE_CHECKING:  # accepted values; the fields hold tuples
    StopStrings = Sequence[str]
    TokenIds = Sequence[int]
else:
    StopStrings = Annotated[tuple[StopString, ...], FailFast()]
    TokenIds = Annotated[tuple[TokenId, ...], FailFast()]


class SamplingParams(ValidatedConfig):
    """Sampling and stopping of one request; immutable, unknown fields are refused.

    If temperature, top_k, top_p, min_p or repetition_penalty are not given, the bundle's defaults
    apply, if it has any. For a chat, max_tokens is None unless it is given.

    Errors name a field's description as the allowed values. One UsageError lists all problems:

    >>> SamplingParams(temperature=-1, n=0)
    Traceback (most recent call last):
    skipdec.engines.errors.ConfigurationError: SamplingParams | 2 problems:
      - temperature is -1; allowed: a number from 0 to 1000000; 0 is greedy: the most probable token
      - n is 0; allowed: an integer from 1 to 1024: completions per prompt
    """

    model_config = ConfigDict(strict=True)

    max_tokens: Annotated[
        int | None, Option(help="0: as many as the model can (chats: 0)", null="0")
    ] = Field(
        default=DEFAULT_MAX_TOKENS,
        ge=1,
        description="an integer from 1, or None (on the command line 0): as many as the model can",
    )
    temperature: Annotated[float, Option()] = Field(
        default=1.0,
        ge=0,
        le=1e6,
        description="a number from 0 to 1000000; 0 is greedy: the most probable token",
    )
    top_k: int = Field(
        default=0,
        ge=-1,
        lt=2**63,
        description="an integer from 1 to 2**63 - 1: only the k most probable tokens; 0 and -1 "
        "are off",
    )
    top_p: Annotated[float, Option()] = Field(
        default=1.0,
        gt=0,
        le=1,
        description="a number above 0 and up to 1: only the most probable tokens with this sum; "
        "1 is off",
    )
    min_p: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="a number from 0 to 1: minimum probability relative to the best token's",
    )
    repetition_penalty: float = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="a number from 0.01 to 100; above 1 makes tokens of prompt and output less "
        "likely",
    )
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
    seed: Annotated[int | None, Option(help="seed of each prompt's own random numbers")] = Field(
        default=None, ge=0, lt=2**64, description="an integer from 0 to 2**64 - 1"
    )
    n: Annotated[int, Option()] = Field(
        default=1,
        ge=1,
        le=MAX_COMPLETIONS,
        description=f"an integer from 1 to {MAX_COMPLETIONS}: completions per prompt",
    )
    min_tokens: int = Field(
        default=0, ge=0, lt=2**63, description="an integer from 0 to max_tokens, below 2**63"
    )
    stop: Annotated[
        StopStrings,
        BeforeValidator(as_tuple),
        Option(help="text that ends a completion; may be repeated"),
    ] = Field(
        default=(),
        max_length=MAX_STOP_STRINGS,
        description=f"a non-empty string of up to {MAX_STOP_LENGTH} characters or a list of up to "
        f"{MAX_STOP_STRINGS} such",
    )
    stop_token_ids: Annotated[TokenIds, BeforeValidator(as_tuple)] = Field(
        default=(), description="a list of token ids from 0"
    )
    ignore_eos: bool = Field(default=False, description="true or false")
    include_stop_str_in_output: bool = Field(default=False, description="true or false")
    skip_special_tokens: bool = Field(default=True, description="true or false")
    logprobs: LogprobCount = Field(
        default=None,
        ge=0,
        description="an integer from 0: most probable tokens reported beside the chosen one",
    )

    @classmethod
    def _describe(cls, item: Any, values: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
        name = str(*item["loc"][:1])
        if name in cls.model_fields:
            allowed = cls.model_fields[name].description
            yield f"`{name}` is {shown(values[name])}; allowed: {allowed}"
        else:
            problem = f"{shown(name)} is unknown" if item["loc"] else item["msg"]
            meant = did_you_mean(name, cls.model_fields, among=len(values))
            yield f"{problem}; {meant}allowed: {', '.join(cls.model_fields)}"

    def _problems(self) -> Iterator[str]:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            yield (
                f"`min_tokens` is {shown(self.min_tokens)}; allowed: 0 to `max_tokens`, which is "
                f"{shown(self.max_tokens)}"
            )
        if self.n > 1 and self.greedy:
            yield (
                f"`n` is {self.n} with `temperature` {self.temperature}; greedy completions "
                "are all alike: set `n` to 1 or the `temperature` above 0"
            )

    @classmethod
    def without_nulls(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``fields`` of a document without those whose null can only mean the default."""
        required = {
            name
            for name, field in cls.model_fields.items()
            if NoneType not in get_args(field.annotation)
        }
        return {
            name: value
            for name, value in fields.items()
            if value is not None or name not in required
        }

    @classmethod
    def fixed(cls, **fields: Any) -> Self:  # noqa: ANN401  (checked by pydantic)
        """Return parameters that all count as given, so that no bundle's defaults apply."""
        return cls(**(dict(cls()) | fields))

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that were given, by name; a bundle may have defaults for others."""
        names = (name for name in SamplingParams.model_fields if name in self.model_fields_set)
        return {name: getattr(self, name) for name in names}

    def resolved(self, defaults: Mapping[str, float], *, is_chat: bool) -> Self:
        """Return the parameters of a request, with a bundle's ``defaults`` for those not given.

        Without max_tokens the answer of a chat may be as long as the model allows.
        """
        changes: dict[str, float | None] = {
            name: value for name, value in defaults.items() if name not in self.model_fields_set
        }
        if is_chat and "max_tokens" not in self.model_fields_set:
            changes["max_tokens"] = None
        return self.updated(**changes) if changes else self

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    def ending_token_ids(self, end_token_ids: Iterable[int]) -> frozenset[int]:
        """Return the tokens that end a completion; ``end_token_ids`` are the model's own."""
        own = () if self.ignore_eos else end_token_ids
        return frozenset((*self.stop_token_ids, *own))

    def vocabulary_problems(self, vocab_size: int, end_token_ids: Iterable[int] = ()) -> list[str]:
        """Return the fields that a vocabulary of ``vocab_size`` tokens can't satisfy.

        ``end_token_ids`` are the model's own ends of text.
        """
        outside = (token_id for token_id in self.stop_token_ids if token_id >= vocab_size)
        problems = [
            f"stop_token_ids has {shown(token_id)}; "
            f"allowed: 0 to {vocab_size - 1}, the model's vocabulary"
            for token_id in islice(outside, 10)
        ]
        if (self.logprobs or 0) > vocab_size:
            problems.append(
                f"logprobs is {shown(self.logprobs)}; the vocabulary has {vocab_size} tokens"
            )
        if self.min_tokens and len(self.ending_token_ids(end_token_ids)) >= vocab_size:
            problems.append(
                f"min_tokens is {shown(self.min_tokens)}, but all {vocab_size} tokens end the "
                "text; leave some out of stop_token_ids, or set min_tokens to 0"
            )
        return problems
