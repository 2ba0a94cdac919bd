"""Comparison of one engine with its torch module on seeded random inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from ...engines.errors import SkipDecError
from ...engines.manifest import EngineKind, EngineSpec, ModelSpec, TensorRole
from ...engines.memory import Array
from .caches import cache_values, unused_cache
from .calls import EngineCalls
from .report import EngineCheck
from .tolerance import Tolerance

# A ragged prompt, padded on the right, then single tokens; some positions stay unused.
_PROMPT_LENGTHS = (7, 1, 4)
_DECODE_STEPS = 2
_UNUSED_POSITIONS = 3
_HEAD_SHAPE = (3, 5)  # [B, S] of the hidden states that head and joins read
_HEAD_ROWS = (14, 0, 7, 7)  # gathered out of order and twice
_EMBED_TOKENS = 4096  # per call, in two rows

_ROW_LENGTH = 19  # of each row's prompt
# Ways to divide each row's prompt into pieces: the lengths of the pieces.
_CUTS: tuple[tuple[int, ...], ...] = ((19,), (1, 8, 10), (7, 7, 5), (16, 1, 1, 1))

# Name of a tensor, the engine's result, and the expected result.
Comparison = tuple[str, Array, Array]


def check_engine(
    spec: EngineSpec,
    engine: EngineCalls,
    reference: EngineCalls,
    model: ModelSpec,
    tolerance: Tolerance,
    seed: int,
    weights_differ: tuple[str, ...],
    *,
    independent: bool = False,
) -> EngineCheck:
    """Run engine and reference on the same inputs and report the worst tensor.

    Covers all rows of the embedding tables and all columns of the head. ``independent``: a layer's
    tokens must be bitwise equal in any batch and for any division of a prompt.
    """
    rng = np.random.default_rng([seed, spec.layer_index or 0])
    compare: dict[EngineKind, Callable[[], Iterator[Comparison]]] = {
        EngineKind.EMBED: lambda: _compare_embed(engine, reference, model),
        EngineKind.LAYER: lambda: _compare_layer(engine, reference, spec, model, rng),
        EngineKind.HEAD: lambda: _compare_head(engine, reference, spec, rng),
        EngineKind.CANDIDATES: lambda: _compare_candidates(engine, reference, model, rng),
        EngineKind.STATES: lambda: _compare_joined(engine, reference, spec, rng),
        EngineKind.ENTRY: lambda: _compare_joined(engine, reference, spec, rng),
    }
    measurements: list[Measurement] = []
    failure = None
    try:
        for comparison in compare[spec.kind]():
            measurements += _measure(*comparison, tolerance)
        if independent and spec.kind is EngineKind.LAYER:
            failure = dependence(engine, spec, rng)
    except SkipDecError as raised:
        failure = "; ".join(raised.problems)
    nothing = Measurement("nothing", 0.0, tolerance.largest)
    worst = max(measurements, key=Measurement.excess, default=nothing)
    return EngineCheck(
        engine=spec.name,
        worst_tensor=worst.name,
        error=worst.error,
        tolerance=worst.tolerance,
        weights_differ=weights_differ,
        failure=failure,
    )


@dataclass(frozen=True)
class Measurement:
    """One error of one tensor and its tolerance."""

    name: str
    error: float
    tolerance: float

    def excess(self) -> float:
        """Return the error divided by the tolerance; infinite for NaN."""
        return math.inf if math.isnan(self.error) else self.error / self.tolerance


def _measure(
    name: str, actual: Array, expected: Array, tolerance: Tolerance
) -> tuple[Measurement, Measurement]:
    """Return the largest and the median error of the tokens of a tensor [tokens, ...]."""
    differences = np.abs(np.subtract(actual, expected, dtype=np.float32))
    largest = differences.reshape(len(differences), -1).max(axis=1)  # [tokens]
    scale = max(float(np.abs(expected).max()), float(np.finfo(np.float32).tiny))
    return (
        Measurement(name, float(largest.max()) / scale, tolerance.largest),
        Measurement(f"{name}, median token", float(np.median(largest)) / scale, tolerance.median),
    )


def graph_tensors(directory: Path, graph: onnx.GraphProto) -> Callable[[str], Array | None]:
    """Return a function that reads an initialiser of a graph in ``directory``; None if missing."""
    initializers = {tensor.name: tensor for tensor in graph.initializer}

    def read(name: str) -> Array | None:
        if name not in initializers:
            return None
        tensor = initializers[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return onnx.numpy_helper.to_array(tensor)
        # onnx.load refuses weights that two targets share by hard link.
        extent = {entry.key: entry.value for entry in tensor.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        shape, offset = tuple(tensor.dims), int(extent["offset"])
        return np.memmap(directory / extent["location"], dtype, "r", offset, shape)

    return read


def weight_problem(name: str, stored: Array | None, expected: Array) -> str | None:
    """Return how a stored tensor differs from the checkpoint's, bit for bit, or None."""
    if stored is None:
        return f"{name} is missing from the graph"
    if stored.shape != expected.shape:
        return f"{name} is {stored.shape}; expected {expected.shape}"
    if stored.dtype != expected.dtype:
        return f"{name} is {stored.dtype}; expected {expected.dtype}"
    differing = np.flatnonzero(_bits(stored) != _bits(expected))
    if not differing.size:
        return None
    first = tuple(int(index) for index in np.unravel_index(differing[0], stored.shape))
    return (
        f"{name} differs from the checkpoint in {differing.size:,} of {stored.size:,} values; "
        f"the first is {list(first)}: {stored[first]}; expected {expected[first]}"
    )


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def _compare_embed(
    engine: EngineCalls, reference: EngineCalls, model: ModelSpec
) -> Iterator[Comparison]:
    """Compare the embeddings of every token and every position."""
    total = max(model.vocab_size, model.max_position_embeddings)
    for start in range(0, total, _EMBED_TOKENS):
        count = min(_EMBED_TOKENS, total - start)
        indices = np.arange(start, start + count + count % 2).reshape(2, -1)  # [2, S]
        input_ids = indices % model.vocab_size
        position_ids = indices % model.max_position_embeddings
        actual, expected = (each.embed(input_ids, position_ids) for each in (engine, reference))
        yield "hidden_states_out", np.concatenate(actual), np.concatenate(expected)  # [2S, E]


def _compare_layer(
    engine: EngineCalls,
    reference: EngineCalls,
    spec: EngineSpec,
    model: ModelSpec,
    rng: np.random.Generator,
) -> Iterator[Comparison]:
    """Compare a ragged prompt and single tokens, hidden states ~ N(0, 1), and then the caches."""
    hidden = spec.tensor(TensorRole.HIDDEN_STATES)
    size, dtype = int(hidden.shape[-1]), np.dtype(hidden.dtype)
    lengths = np.array(_PROMPT_LENGTHS)  # [B]
    rows, padded = len(lengths), int(lengths.max())
    past = spec.tensor(TensorRole.PAST_KEY)
    capacity = padded + _DECODE_STEPS + _UNUSED_POSITIONS
    is_masked = TensorRole.ATTENTION_MASK in spec.roles  # 0 times NaN is NaN
    key, value = (unused_cache(past, rows, capacity, zeroed=is_masked) for _ in range(2))
    wanted_key, wanted_value = (
        np.zeros((rows, model.num_kv_heads, capacity, model.head_dim), np.float32) for _ in range(2)
    )

    for step in range(1 + _DECODE_STEPS):
        num_tokens = 1 if step else padded
        states = rng.standard_normal((rows, num_tokens, size)).astype(dtype)  # [B, S, E]
        starts = lengths + step - 1 if step else np.zeros(rows, np.int64)
        actual = engine.layer(states, key, value, starts)
        expected = reference.layer(states, wanted_key, wanted_value, starts)
        valid = slice(None) if step else np.arange(padded) < lengths[:, None]
        stage = f"decode step {step}" if step else "prompt"
        yield f"hidden_states_out ({stage})", actual[valid], expected[valid]
    written = np.arange(capacity) < lengths[:, None] + _DECODE_STEPS  # [B, T]
    for name, cache, wanted in (
        ("present_key", key, wanted_key),
        ("present_value", value, wanted_value),
    ):
        values = cache_values(cache, past)
        yield name, values.swapaxes(1, 2)[written], wanted.swapaxes(1, 2)[written]


def _compare_head(
    engine: EngineCalls, reference: EngineCalls, spec: EngineSpec, rng: np.random.Generator
) -> Iterator[Comparison]:
    hidden = spec.tensor(TensorRole.HIDDEN_STATES)
    states = rng.standard_normal((*_HEAD_SHAPE, int(hidden.shape[-1]))).astype(hidden.dtype)
    row_positions = np.array(_HEAD_ROWS)
    actual, expected = (each.head(states, row_positions) for each in (engine, reference))
    yield "logits", actual, expected


def _compare_joined(
    engine: EngineCalls, reference: EngineCalls, spec: EngineSpec, rng: np.random.Generator
) -> Iterator[Comparison]:
    """Compare the join of concatenated states ~ N(0, 1)."""
    given = spec.tensor(TensorRole.STATES)
    states = rng.standard_normal((*_HEAD_SHAPE, int(given.shape[-1]))).astype(given.dtype)
    actual, expected = (each.joined(states) for each in (engine, reference))
    yield "hidden_states_out", np.concatenate(actual), np.concatenate(expected)


def _compare_candidates(
    engine: EngineCalls, reference: EngineCalls, model: ModelSpec, rng: np.random.Generator
) -> Iterator[Comparison]:
    """Compare candidates of random logits without ties."""
    logits = rng.standard_normal((len(_HEAD_ROWS), model.vocab_size)).astype(np.float32)
    yield from zip(
        ("top_logits", "top_token_ids"),
        engine.candidates(logits),
        reference.candidates(logits),
        strict=True,
    )


def dependence(engine: EngineCalls, spec: EngineSpec, rng: np.random.Generator) -> str | None:
    """Return a way of running prompts whose bits differ from those of single rows, or None.

    All rows of a batch are divided equally. Pieces after the first start at later positions, which
    only engines of skipdec's kernels support.
    """
    size = int(spec.tensor(TensorRole.HIDDEN_STATES).shape[-1])
    rows = rng.standard_normal((len(_CUTS), _ROW_LENGTH, size)).astype(np.float32)  # [B, S, E]
    alone = [
        next(_run_in_pieces(engine, spec, rows[[row]], (_ROW_LENGTH,))) for row in range(len(rows))
    ]
    for cut in _CUTS:
        for row, result in enumerate(_run_in_pieces(engine, spec, rows, cut)):
            for name, seen, expected in zip(
                ("hidden states", "keys", "values"), result, alone[row], strict=True
            ):
                if seen.tobytes() != expected.tobytes():
                    pieces = (
                        "whole" if len(cut) == 1 else f"in pieces of {', '.join(map(str, cut))}"
                    )
                    return (
                        f"{name} of row {row}, its prompt {pieces} in a batch of {len(rows)}, "
                        "differ from those of the row alone"
                    )
    return None


def _run_in_pieces(
    engine: EngineCalls, spec: EngineSpec, rows: Array, cut: Sequence[int]
) -> Iterator[tuple[Array, Array, Array]]:
    """Run [B, S, E] in pieces with new caches; yield each row's hidden states, keys and values."""
    past = spec.tensor(TensorRole.PAST_KEY)
    key, value = (unused_cache(past, len(rows), _ROW_LENGTH, zeroed=False) for _ in range(2))
    pieces, start = [], 0
    for length in cut:
        states = np.ascontiguousarray(rows[:, start : start + length])
        pieces.append(engine.layer(states, key, value, np.full(len(rows), start)))
        start += length
    yield from zip(np.concatenate(pieces, axis=1), key, value, strict=True)
