"""Inputs and outputs of the canonical engines, by role."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.manifest import (
    NUM_CANDIDATES,
    NUM_JOINED,
    DType,
    EngineKind,
    FloatType,
    ModelSpec,
    TensorRole,
    TensorSpec,
)


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one engine's graph, in order; each tensor is named after its role."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def tensor_spec(role: TensorRole, dtype: DType, *shape: int | str) -> TensorSpec:
    """Return the spec of a tensor named after its role."""
    return TensorSpec(name=role.value, role=role, dtype=dtype, shape=shape)


def decoder_signature(
    kind: EngineKind,
    model: ModelSpec,
    dtype: FloatType,
    *,
    rotates: bool,
) -> Signature:
    """Return the signature of a conventional decoder family.

    ``dtype`` is that of hidden states and KV cache. ``rotates``: position_ids are inputs of the
    layers, as rotary embeddings require, and not of the embedding, because TensorRT refuses graphs
    with unused inputs.
    """
    positions = (tensor_spec(TensorRole.POSITION_IDS, "int64", "B", "S"),)
    role = TensorRole
    hidden_states = tensor_spec(role.HIDDEN_STATES, dtype, "B", "S", model.hidden_size)
    hidden_states_out = tensor_spec(role.HIDDEN_STATES_OUT, dtype, "B", "S", model.hidden_size)
    match kind:
        case EngineKind.EMBED:
            return Signature(
                inputs=(
                    tensor_spec(role.INPUT_IDS, "int64", "B", "S"),
                    *(() if rotates else positions),
                ),
                outputs=(hidden_states_out,),
            )
        case EngineKind.LAYER:
            cache = ("B", model.num_kv_heads, "T", model.head_dim)
            return Signature(
                inputs=(
                    hidden_states,
                    tensor_spec(role.PAST_KEY, dtype, *cache),
                    tensor_spec(role.PAST_VALUE, dtype, *cache),
                    tensor_spec(role.WRITE_INDICES, "int64", "B"),
                    tensor_spec(role.ATTENTION_MASK, "bool", "B", 1, "S", "T"),
                    *(positions if rotates else ()),
                ),
                outputs=(
                    hidden_states_out,
                    tensor_spec(role.PRESENT_KEY, dtype, *cache),
                    tensor_spec(role.PRESENT_VALUE, dtype, *cache),
                ),
            )
        case EngineKind.STATES | EngineKind.ENTRY:
            width = NUM_JOINED[kind] * model.hidden_size
            return Signature(
                inputs=(tensor_spec(role.STATES, dtype, "B", "S", width),),
                outputs=(hidden_states_out,),
            )
        case EngineKind.HEAD:
            return Signature(
                inputs=(hidden_states, tensor_spec(role.ROW_POSITIONS, "int64", "R")),
                outputs=(tensor_spec(role.LOGITS, "float32", "R", model.vocab_size),),
            )
        case EngineKind.CANDIDATES:
            candidates = ("R", min(NUM_CANDIDATES, model.vocab_size))
            return Signature(
                inputs=(tensor_spec(role.LOGITS, "float32", "R", model.vocab_size),),
                outputs=(
                    tensor_spec(role.TOP_LOGITS, "float32", *candidates),
                    tensor_spec(role.TOP_TOKEN_IDS, "int64", *candidates),
                ),
            )
