"""The engines of a bundle: kinds, files, tensors by role, and what TensorRT built them with."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from .. import constants
from ..errors import BundleError
from .fields import (
    MAX_BYTES,
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_WIDTH,
    Capacity,
    Dimension,
    DType,
    Record,
    RelativePath,
    Sha256,
)

DRAFT_LAYER = constants.text("draft_layer")  # names of the engines that only drafts run
DRAFT_HEAD = constants.text("draft_head")
DRAFT_STATES = constants.text("draft_states")
DRAFT_ENTRY = constants.text("draft_entry")
TRAINED_HEAD = constants.text("trained_head")
NUM_CANDIDATES = constants.integer("num_candidates")  # tokens per row that a device proposes


class EngineKind(StrEnum):
    """The kinds of engine: one embed, one per decoder layer, one head, one for candidates.

    Only drafts run ``states`` and ``entry``, whose input is several states, concatenated.
    """

    EMBED = "embed"
    LAYER = "layer"
    HEAD = "head"
    CANDIDATES = "candidates"
    STATES = "states"
    ENTRY = "entry"


NUM_JOINED = {EngineKind.STATES: 3, EngineKind.ENTRY: 2}
"""Number of states that the engines of drafts join, by kind: ``states`` joins those of three
depths, ``entry`` the token's embedding and the result of ``states``."""


class TensorRole(StrEnum):
    """The meaning of a tensor to the runtime, whatever the graph calls it.

    Shapes: B rows, S tokens per row, E hidden size, N heads, T KV capacity, D head size,
    R gathered positions, V vocabulary, K candidates, J joined states. An int8 cache has D + 4 in
    place of D: the codes of a token and head, and their float32 scale in the last four bytes.
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
    TOP_TOKEN_IDS = "top_token_ids"  # int64 [R, K], the tokens of top_logits
    STATES = "states"  # float [B, S, J * E], states beside each other, for drafts


PAST_OF = {
    TensorRole.PRESENT_KEY: TensorRole.PAST_KEY,
    TensorRole.PRESENT_VALUE: TensorRole.PAST_VALUE,
}
"""The cache that an engine reads, by the role under which it writes to the same buffer."""


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


def is_called(name: str, kind: EngineKind) -> Callable[[EngineSpec], EngineSpec]:
    """Return a check that an engine outside the stack has this name and kind and no layer index."""

    def check(engine: EngineSpec) -> EngineSpec:
        if (engine.name, engine.kind, engine.layer_index) != (name, kind, None):
            raise ValueError(
                f"is engine {engine.name}, a {engine.kind}; expected: {name}, a {kind} without "
                "layer_index"
            )
        return engine

    return check


_NUM_READ = NUM_JOINED[EngineKind.STATES]


class TrainedDraft(Record):
    """The engines of a draft layer: they read full depth's states and score some of the tokens.

    ``states`` makes one state of those that are read. ``entry`` makes the layer's input of a
    token's embedding and the state of the token before it; in later guesses, the layer's own output
    takes the place of that state.
    """

    reads: tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...] = Field(
        min_length=_NUM_READ,
        max_length=_NUM_READ,
        description="how many of the model's layers have run where states are read, ascending",
    )
    token_ids: tuple[Annotated[int, Field(ge=0, le=MAX_TOKENS - 1)], ...] = Field(
        min_length=1, max_length=MAX_TOKENS, description="the tokens that head scores, ascending"
    )
    states: Annotated[EngineSpec, AfterValidator(is_called(DRAFT_STATES, EngineKind.STATES))]
    entry: Annotated[EngineSpec, AfterValidator(is_called(DRAFT_ENTRY, EngineKind.ENTRY))]
    layer: Annotated[EngineSpec, AfterValidator(is_called(DRAFT_LAYER, EngineKind.LAYER))]
    head: Annotated[EngineSpec, AfterValidator(is_called(TRAINED_HEAD, EngineKind.HEAD))]

    @property
    def engines(self) -> tuple[EngineSpec, ...]:
        """Return its engines, in the order in which they run."""
        return (self.states, self.entry, self.layer, self.head)


class DraftHead(Record):
    """The head's first columns as an engine of its own, which reads the head's weights file."""

    tokens: int = Field(ge=1, le=MAX_TOKENS, description="how many of the first tokens are scored")
    engine: Annotated[EngineSpec, AfterValidator(is_called(DRAFT_HEAD, EngineKind.HEAD))]


class BuildSpec(Record):
    """Settings with which TensorRT compiled the engines, and the limits that follow from them."""

    version: str = Field(description="version of the TensorRT library, e.g. 10.16.1.11")
    compute_capability: str = Field(description="compute capability of the plans' GPU, e.g. 8.9")
    driver: str | None = Field(description="CUDA version of the driver; None: built without a GPU")
    max_batch_size: int = Field(ge=1, le=MAX_WIDTH, description="rows of a decode step")
    max_prompt_len: Capacity = Field(description="tokens per row of a prefill call")
    max_prefill_rows: int = Field(ge=1, le=MAX_WIDTH, description="rows of a prefill call")
    kv_buckets: tuple[Capacity, ...] = Field(min_length=1, description="KV capacities T, ascending")
    optimization_level: int = Field(ge=0, le=5)
    workspace: int | None = Field(
        default=None, ge=0, le=MAX_BYTES, description="bytes of scratch allowed"
    )
    hardware_compatible: bool = False
    version_compatible: bool = False


class FileRecord(Record):
    """One file of the bundle."""

    path: RelativePath
    size: int = Field(ge=0, le=MAX_BYTES)
    sha256: Sha256
