"""The types of the manifest's fields, their limits, and the base class of its parts."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from .. import constants
from ..checking import FrozenModel

DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "uint8", "int8", "bool"]

# Far above those of any model, and far below what would exhaust memory before they are checked.
MAX_LAYERS = constants.integer("max_layers")
MAX_TOKENS = constants.integer("max_tokens")  # of a vocabulary; positions of a sequence
MAX_BYTES = 2**63 - 1
MAX_WIDTH = constants.integer("max_width")  # of a hidden state; heads, rows


def _inside_bundle(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not {"\\", "\0"}.isdisjoint(path) or not path:
        raise ValueError(f"{path!r} leaves the bundle; allowed: a relative path without '..'")
    if str(pure) != path:
        raise ValueError(f"{path!r} is another way to write '{pure}'")
    return path


RelativePath = Annotated[str, AfterValidator(_inside_bundle)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Capacity = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Dimension = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Record(FrozenModel):
    """A part of manifest.json, in which unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


def without_nulls(document: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Return ``document`` without those of ``fields`` that are null."""
    return {key: value for key, value in document.items() if value is not None or key not in fields}
