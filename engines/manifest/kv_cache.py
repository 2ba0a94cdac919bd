"""The width of a token in the KV caches of a bundle."""

from __future__ import annotations

from .. import constants
from .model_spec import ModelSpec
from .precision import KVType

KV_SCALE_BYTES = constants.integer("kv_scale_bytes")  # one scale per token and head, int8 caches


def kv_width(dtype: KVType, model: ModelSpec) -> int:
    """Return the elements per token and head in a cache of ``dtype``: D, or D + 4 in int8."""
    return model.head_dim + (KV_SCALE_BYTES if dtype == "int8" else 0)
