"""The KV caches of a bundle: how layers use their memory, and their width."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .. import constants
from .fields import Record
from .model_spec import ModelSpec
from .precision import KVType

KV_SCALE_BYTES = constants.integer("kv_scale_bytes")  # one scale per token and head, int8 caches

UnusedCache = Literal["any", "finite"]


def _is_true(value: object) -> object:
    if value is not True:  # 1 and 1.0 equal it
        raise ValueError(f"{value!r:.40} is not true")
    return value


class KVCacheSpec(Record):
    """Use of the memory of KV caches by the layers."""

    shares_buffer: Annotated[Literal[True], BeforeValidator(_is_true)] = Field(
        default=True, description="past and present are one buffer, to which a layer appends"
    )
    unused: UnusedCache = Field(
        description="allowed content of positions without a token: any bytes, as they are "
        "never read; or finite numbers, as they are read and multiplied by 0"
    )


def kv_width(dtype: KVType, model: ModelSpec) -> int:
    """Return the elements per token and head in a cache of ``dtype``: D, or D + 4 in int8."""
    return model.head_dim + (KV_SCALE_BYTES if dtype == "int8" else 0)
