"""The structure of a bundle's model."""

from __future__ import annotations

from typing import Any

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from .. import constants
from .fields import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Capacity, Integer, Record
from .requests import SamplingDefaults

MAX_END_TOKENS = constants.integer("max_end_tokens")


class ModelSpec(Record):
    """The structure of a model: what the runtime needs, and what decides which graphs are built.

    Every family has these fields. A family's own fields are in ``model_extra``, beside them in the
    JSON, and only the exporter's folder of that family reads them. Fields with their default value
    are left out: an OPT of 12 heads, each 64 wide, has ``{"num_heads": 12, "hidden_size": 768}``.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool | int | float | str | None] = Field(init=False)

    family: str = Field(default="opt", description="Hugging Face's model_type")
    name: str = Field(description="hub id or directory name, for people")
    num_layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: int = Field(ge=1, le=MAX_WIDTH)
    num_heads: int = Field(ge=1, le=MAX_WIDTH, description="number of query heads")
    num_kv_heads: int = Field(
        default_factory=lambda known: known["num_heads"],
        ge=1,
        le=MAX_WIDTH,
        description="number of key and value heads; absent: num_heads",
    )
    head_dim: int = Field(
        default_factory=lambda known: known["hidden_size"] // known["num_heads"],
        ge=1,
        le=MAX_WIDTH,
        description="width of one head; absent: hidden_size / num_heads",
    )
    vocab_size: int = Field(ge=1, le=MAX_TOKENS)
    max_position_embeddings: Capacity = Field(
        description="positions that the model was trained for"
    )
    max_seq_len: Capacity = Field(description="longest prompt + completion that is accepted")
    tie_word_embeddings: bool = True
    bos_token_id: Integer | None = None
    eos_token_id: Integer | None = None
    pad_token_id: Integer | None = None
    end_token_ids: tuple[Integer, ...] = Field(
        default_factory=lambda known: _only(known.get("eos_token_id")),
        max_length=MAX_END_TOKENS,
        description="tokens that end a text, at least two, eos_token_id first; absent: only "
        "eos_token_id, if that is not null",
    )
    sampling_defaults: SamplingDefaults = Field(
        default=SamplingDefaults(),
        description="for requests that leave these parameters out; absent: none",
    )

    @field_validator("eos_token_id")
    @classmethod
    def _check_end(cls, token_id: int | None, info: ValidationInfo) -> int | None:
        """Refuse an end-of-text token without a logit, because the sampler masks that logit."""
        size = info.data.get("vocab_size")  # missing if it is invalid
        if token_id is not None and size is not None and not 0 <= token_id < size:
            raise ValueError(f"is {token_id}; allowed: 0 to {size - 1}, the model's vocabulary")
        return token_id

    @field_validator("end_token_ids")
    @classmethod
    def _check_ends(cls, ends: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        """Refuse anything but eos_token_id followed by other tokens of the vocabulary."""
        if not {"eos_token_id", "vocab_size"} <= info.data.keys():  # one of them is invalid
            return ends
        first, size = info.data["eos_token_id"], info.data["vocab_size"]
        if len(ends) < 2 or len(set(ends)) < len(ends) or ends[0] != first:
            raise ValueError(
                f"is {list(ends)}; allowed: eos_token_id, which is {first}, and then others, each "
                "once"
            )
        if not all(0 <= token_id < size for token_id in ends):
            raise ValueError(f"is {list(ends)}; allowed: 0 to {size - 1}, the model's vocabulary")
        return ends

    @model_serializer(mode="wrap")
    def _without_implied(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out defaults, as ``ModelSpec`` says."""
        document: dict[str, Any] = serialize(self)
        implied = {
            "family": "opt",
            "num_kv_heads": self.num_heads,
            "head_dim": self.hidden_size // self.num_heads,
            "end_token_ids": _only(self.eos_token_id),
            "sampling_defaults": SamplingDefaults(),
        }
        return {
            key: value
            for key, value in document.items()
            if key not in implied or implied[key] != getattr(self, key)
        }


def _only(token_id: int | None) -> tuple[int, ...]:
    return () if token_id is None else (token_id,)
