"""The structure of a bundle's model."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)
from pydantic.json_schema import SkipJsonSchema

from .fields import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Capacity, Integer, Record
from .requests import SamplingDefaults


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
    end_token_ids: Annotated[tuple[Integer, ...], SkipJsonSchema()] = Field(
        default_factory=lambda known: tuple(
            token_id for token_id in [known.get("eos_token_id")] if token_id is not None
        ),
        exclude=True,
        description="tokens that end a text, eos_token_id first; the manifest stores them",
    )
    sampling_defaults: Annotated[SamplingDefaults, SkipJsonSchema()] = Field(
        default=SamplingDefaults(),
        exclude=True,
        description="of requests that give no parameters; the manifest stores them",
    )

    @field_validator("eos_token_id")
    @classmethod
    def _check_end(cls, token_id: int | None, info: ValidationInfo) -> int | None:
        """Refuse an end of texts that has no logit, which the sampler would mask."""
        size = info.data.get("vocab_size")  # missing if it is wrong itself
        if token_id is not None and size is not None and not 0 <= token_id < size:
            raise ValueError(f"is {token_id}; allowed: 0 to {size - 1}, the model's vocabulary")
        return token_id

    @model_serializer(mode="wrap")
    def _without_implied(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out defaults, as ``ModelSpec`` says."""
        document: dict[str, Any] = serialize(self)
        implied = {
            "family": "opt",
            "num_kv_heads": self.num_heads,
            "head_dim": self.hidden_size // self.num_heads,
        }
        return {
            key: value
            for key, value in document.items()
            if key not in implied or implied[key] != value
        }
