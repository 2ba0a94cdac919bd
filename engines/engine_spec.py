"""One engine of a bundle: its kind, its files, and its tensors by role."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from . import constants
from .checking import FrozenModel
from .errors import BundleError

DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "uint8", "int8", "bool"]

# Far above those of any model, and far below what would exhaust memory before they are checked.
MAX_LAYERS = constants.integer("max_layers")
MAX_TOKENS = constants.integer("max_tokens")  # of a vocabulary; positions of a sequence
MAX_BYTES = 2**63 - 1


class EngineKind(StrEnum):
    """The kinds of engine: one embed, one per decoder layer, one head, one for candidates."""

    EMBED = "embed"
    LAYER = "layer"
    HEAD = "head"
    CANDIDATES = "candidates"


class TensorRole(StrEnum):
    """The meaning of a tensor to the runtime, whatever the graph calls it.

    Shapes: B rows, S tokens per row, E hidden size, N heads, T KV capacity, D head size,
    R gathered positions, V vocabulary, K candidates. An int8 cache has D + 4 in place of D: the
    codes of a token and head, and their float32 scale in the last four bytes.
    """

    INPUT_IDS = "input_ids"  # int64 [B, S]
    POSITION_IDS = "position_ids"  # int64 [B, S], 0 for a row's first token
    HIDDEN_STATES = "hidden_states"  # float [B, S, E], input of layers and head
    HIDDEN_STATES_OUT = "hidden_states_out"  # float [B, S, E], output of embed and layers
    PAST_KEY = "past_key"  # float or int8 [B, N, T, D]
    PAST_VALUE = "past_value"  # float or int8 [B, N, T, D]
    PRESENT_KEY = "present_key"  # the same buffer as past_key
    PRESENT_VALUE = "present_value"  # the same buffer as past_value
    WRITE_INDICES = "write_indices"  # int64 [B], first position written
    ATTENTION_MASK = "attention_mask"  # bool [B, 1, S, T], canonical
    SEQLENS_K = "seqlens_k"  # int32 [B], GroupQueryAttention: total length - 1 of each row
    TOTAL_SEQUENCE_LENGTH = "total_sequence_length"  # int32 scalar, the longest row's total
    ROW_POSITIONS = "row_positions"  # int64 [R], flat index into B*S
    LOGITS = "logits"  # float32 [R, V]
    TOP_LOGITS = "top_logits"  # float32 [R, K], each row's K largest logits, largest first
    TOP_TOKEN_IDS = "top_token_ids"  # int64 [R, K], whose they are


def _inside_bundle(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not {"\\", "\0"}.isdisjoint(path) or not path:
        raise ValueError(f"{path!r} leaves the bundle; allowed: a relative path without '..'")
    if str(pure) != path:
        raise ValueError(f"{path!r} is another way to write '{pure}'")
    return path


RelativePath = Annotated[str, AfterValidator(_inside_bundle)]
Capacity = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Dimension = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Record(FrozenModel):
    """A part of manifest.json, in which unknown fields are ignored (see ``Manifest.requires``)."""

    model_config = ConfigDict(extra="ignore")


class TensorSpec(Record):
    """One input or output of an engine. Dimensions are numbers or symbols (``"B"``, ``"T"``)."""

    name: str
    role: TensorRole
    dtype: DType
    shape: tuple[Dimension | str, ...]


class KVBucket(Record):
    """The plan of a layer for one static KV capacity."""

    capacity: Capacity = Field(description="T, in positions")
    graph: RelativePath


class EngineSpec(Record):
    """One engine: its graph, its weights files and its inputs and outputs by role.

    A TensorRT plan contains its weights, so it is listed both as graph and as weights. Layers of
    targets with a static T have one plan per capacity in ``buckets``, ascending; ``graph`` is the
    first of them.
    """

    name: str
    kind: EngineKind
    layer_index: Annotated[int, Field(ge=0, le=MAX_LAYERS - 1)] | None = None
    graph: RelativePath
    weights: tuple[RelativePath, ...] = ()
    buckets: tuple[KVBucket, ...] = ()
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    step_bytes: int = Field(
        ge=0, le=MAX_BYTES, description="bytes of weights and scales read to run one token"
    )

    def tensor(self, role: TensorRole) -> TensorSpec:
        """Return the input or output that plays ``role``; BundleError if this engine has none."""
        for spec in (*self.inputs, *self.outputs):
            if spec.role == role:
                return spec
        raise BundleError(
            f"engine {self.name}",
            f"has no tensor for {role}; it has {', '.join(sorted(self.roles))}",
        )

    @property
    def roles(self) -> frozenset[TensorRole]:
        """Return the roles of this engine's inputs and outputs."""
        return frozenset(spec.role for spec in (*self.inputs, *self.outputs))
