"""Inputs and outputs that each kind of engine must have, checked against the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import BundleError
from ..manifest import (
    NUM_CANDIDATES,
    NUM_JOINED,
    DType,
    EngineKind,
    EngineSpec,
    Manifest,
    TensorRole,
    TensorSpec,
)

_Role = TensorRole
_Roles = frozenset[TensorRole]
_REQUIRED: Mapping[EngineKind, tuple[_Roles, _Roles]] = {  # inputs and outputs
    EngineKind.EMBED: (frozenset({_Role.INPUT_IDS}), frozenset({_Role.HIDDEN_STATES_OUT})),
    EngineKind.LAYER: (
        frozenset({_Role.HIDDEN_STATES, _Role.PAST_KEY, _Role.PAST_VALUE}),
        frozenset({_Role.HIDDEN_STATES_OUT, _Role.PRESENT_KEY, _Role.PRESENT_VALUE}),
    ),
    EngineKind.HEAD: (
        frozenset({_Role.HIDDEN_STATES, _Role.ROW_POSITIONS}),
        frozenset({_Role.LOGITS}),
    ),
    EngineKind.CANDIDATES: (
        frozenset({_Role.LOGITS}),
        frozenset({_Role.TOP_LOGITS, _Role.TOP_TOKEN_IDS}),
    ),
    EngineKind.STATES: (frozenset({_Role.STATES}), frozenset({_Role.HIDDEN_STATES_OUT})),
    EngineKind.ENTRY: (frozenset({_Role.STATES}), frozenset({_Role.HIDDEN_STATES_OUT})),
}
_OPTIONAL: Mapping[EngineKind, _Roles] = {  # inputs that a target or family may add
    EngineKind.EMBED: frozenset({_Role.POSITION_IDS}),
    EngineKind.LAYER: frozenset(
        {
            _Role.POSITION_IDS,
            _Role.WRITE_INDICES,
            _Role.ATTENTION_MASK,
            _Role.SEQLENS_K,
            _Role.TOTAL_SEQUENCE_LENGTH,
        }
    ),
}
_TENSORS: Mapping[TensorRole, tuple[DType | None, str]] = {  # None: the bundle's own dtype
    _Role.INPUT_IDS: ("int64", "BS"),
    _Role.POSITION_IDS: ("int64", "BS"),
    _Role.HIDDEN_STATES: (None, "BSE"),
    _Role.HIDDEN_STATES_OUT: (None, "BSE"),
    _Role.PAST_KEY: (None, "BNTW"),
    _Role.PAST_VALUE: (None, "BNTW"),
    _Role.PRESENT_KEY: (None, "BNTW"),
    _Role.PRESENT_VALUE: (None, "BNTW"),
    _Role.WRITE_INDICES: ("int64", "B"),
    _Role.ATTENTION_MASK: ("bool", "B1ST"),
    _Role.SEQLENS_K: ("int32", "B"),
    _Role.TOTAL_SEQUENCE_LENGTH: ("int32", ""),
    _Role.ROW_POSITIONS: ("int64", "R"),
    _Role.LOGITS: ("float32", "RV"),
    _Role.TOP_LOGITS: ("float32", "RK"),
    _Role.TOP_TOKEN_IDS: ("int64", "RK"),
    _Role.STATES: (None, "BSJ"),
}


def check_contract(manifest: Manifest) -> None:
    """Raise BundleError, listing all problems, unless the runtime can run the engines described.

    Each kind of engine has fixed roles, and each role a dtype and a shape with the model's sizes.
    All hidden states share one dtype, as do all keys and values, and all layers have the same
    static KV capacities. The layers and heads of drafts must match the others, except for the
    number of tokens that a head scores.
    """
    layers = manifest.layers
    scored = dict.fromkeys(manifest.all_engines, manifest.model.vocab_size)  # tokens of the logits
    if (trained := manifest.trained_draft) is not None:
        layers = (*layers, trained.layer)
        scored |= dict.fromkeys(trained.engines, len(trained.token_ids))
    if manifest.draft_head is not None:
        scored[manifest.draft_head.engine] = manifest.draft_head.tokens
    problems = [
        text for spec, tokens in scored.items() for text in _engine_problems(spec, manifest, tokens)
    ]
    built = manifest.build.kv_buckets if manifest.build is not None else ()
    for spec in layers:
        capacities = tuple(bucket.capacity for bucket in spec.buckets)
        if capacities and capacities != built:
            problems.append(
                f"engine {spec.name} has plans for KV capacities {capacities}; built: {built}"
            )
    if problems:
        raise BundleError("manifest.json", *problems, "export the model again")


def _engine_problems(spec: EngineSpec, manifest: Manifest, tokens: int) -> Iterator[str]:
    inputs, outputs = _REQUIRED[spec.kind]
    for direction, tensors, needed, allowed in (
        ("inputs", spec.inputs, inputs, inputs | _OPTIONAL.get(spec.kind, frozenset())),
        ("outputs", spec.outputs, outputs, outputs),
    ):
        roles = [tensor.role for tensor in tensors]
        names = {tensor.name for tensor in tensors}
        fits = needed <= set(roles) <= allowed
        if not fits or len(set(roles)) < len(roles) or len(names) < len(roles):
            yield (
                f"engine {spec.name} has the {direction} {', '.join(roles) or 'none'}; expected "
                f"{', '.join(sorted(needed))}, each once"
            )
    for tensor in (*spec.inputs, *spec.outputs):
        yield from _tensor_problems(spec, tensor, manifest, tokens)


def _tensor_problems(
    spec: EngineSpec, tensor: TensorSpec, manifest: Manifest, tokens: int
) -> Iterator[str]:
    model = manifest.model
    sizes: Mapping[str, int] = {
        "1": 1,
        "E": model.hidden_size,
        "N": model.num_kv_heads,
        "W": manifest.kv_width,
        "V": tokens,
        "K": min(NUM_CANDIDATES, model.vocab_size),
        "J": NUM_JOINED.get(spec.kind, 1) * model.hidden_size,
    }
    dtype, symbols = _TENSORS[tensor.role]
    dtype = dtype or (manifest.kv_dtype if "W" in symbols else manifest.hidden_dtype)
    if tensor.dtype != dtype:
        yield f"engine {spec.name}: {tensor.name} is {tensor.dtype}; expected {dtype}"
    expected = tuple(sizes.get(symbol, symbol) for symbol in symbols)
    fits = len(tensor.shape) == len(expected) and all(
        seen == wanted if isinstance(wanted, int) else isinstance(seen, str)
        for seen, wanted in zip(tensor.shape, expected, strict=True)
    )
    if not fits:
        yield f"engine {spec.name}: {tensor.name} is {tensor.shape}; expected {expected}"
