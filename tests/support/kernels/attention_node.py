"""Run one Attention node with its caches, and compute its result in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from one_operator import operator_session
from onnx import TensorProto

Array = np.ndarray[Any, Any]

DTYPES = {
    "float32": (np.float32, TensorProto.FLOAT),
    "float16": (np.float16, TensorProto.FLOAT16),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16),
    "int8": (np.int8, TensorProto.INT8),
}
SCALE_BYTES = 4
OPTIONAL = ("inv_freq", "query_norm", "key_norm")


@dataclass(frozen=True, eq=False)
class Attention:
    """One node. ``inv_freq`` [R/2] and the norms [D] are initialisers; None omits the operand."""

    heads: int = 4
    kv_heads: int = 4
    head_size: int = 64
    dtype: str = "float32"
    capacity: int = 64
    scale: float = 0.0
    threads: int = 1
    packed: bool = True
    inv_freq: Array | None = None
    rotary_scale: float = 1.0
    query_norm: Array | None = None
    key_norm: Array | None = None
    norm_epsilon: float = 1e-5

    @property
    def constants(self) -> dict[str, Array]:
        """Return the initialisers by name."""
        return {name: value for name in OPTIONAL if (value := getattr(self, name)) is not None}

    def session(self) -> onnxruntime.InferenceSession:
        """Open a session of this node."""
        kind = DTYPES[self.dtype][1]
        types = dict.fromkeys(["past_key", "past_value", "present_key", "present_value"], kind)
        new = ["", ""] if self.packed else ["key", "value"]
        constants = self.constants
        optional = [name if name in constants else "" for name in OPTIONAL]
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "scale": self.scale}
        if constants:
            attributes |= {"rotary_scale": self.rotary_scale, "norm_epsilon": self.norm_epsilon}
        return operator_session(
            "Attention",
            [
                "query",
                *new,
                "past_key",
                "past_value",
                "write_indices",
                *(optional if constants else []),
            ],
            constants,
            attributes,
            types | {"write_indices": TensorProto.INT64},
            ["y", "present_key", "present_value"],
            threads=self.threads,
        )

    def random_tokens(self, batch: int, tokens: int, seed: int = 0) -> Array:
        """Return packed queries, keys and values [batch, tokens, (N + 2M)·D]."""
        columns = (self.heads + 2 * self.kv_heads) * self.head_size
        random = np.random.default_rng(seed)
        return random.standard_normal((batch, tokens, columns)).astype(np.float32)

    def cache(self, batch: int) -> Cache:
        """Return a cache for ``batch`` sequences, filled with NaN (int8: its scales are NaN)."""
        dtype = np.dtype(DTYPES[self.dtype][0])
        width = self.head_size + (SCALE_BYTES if self.dtype == "int8" else 0)
        shape = (batch, self.kv_heads, self.capacity, width * dtype.itemsize)
        key, value = (np.full(shape, 0xFF, np.uint8).view(dtype) for _ in range(2))
        return Cache(self, key, value)

    def columns(self, x: Array) -> tuple[Array, Array, Array]:
        """Return queries, keys and values [B, S, heads, D] of packed tokens."""
        parts = np.split(x, [self.heads * self.head_size, -self.kv_heads * self.head_size], axis=-1)
        query, key = parts[0], parts[1]
        return tuple(
            part.reshape(*x.shape[:2], -1, self.head_size) for part in (query, key, parts[2])
        )  # type: ignore[return-value]

    def placed(self, heads: Array, norm: Array | None, positions: Array) -> Array:
        """Return heads [B, S, heads, D] in float64, normalised and rotated to ``positions`` [B, S].

        Angles are rounded to float32, as the operator defines.
        """
        y: Array = heads.astype(np.float64)
        if norm is not None:
            mean = np.square(y).mean(-1, keepdims=True)
            y = y / np.sqrt(mean + self.norm_epsilon) * norm.astype(np.float64)
        if self.inv_freq is not None:
            angles = positions[..., None].astype(np.float32) * self.inv_freq  # [B, S, R/2]
            cosine, sine = (
                function(angles.astype(np.float64))[:, :, None] * self.rotary_scale
                for function in (np.cos, np.sin)
            )
            pairs = len(self.inv_freq)
            first, second, rest = np.split(y, [pairs, 2 * pairs], axis=-1)
            turned = (first * cosine - second * sine, second * cosine + first * sine)
            y = np.concatenate([*turned, rest], axis=-1)
        return y


@dataclass
class Cache:
    """Buffers that a node appends to in place."""

    node: Attention
    key: Array
    value: Array
    _session: onnxruntime.InferenceSession | None = field(default=None, repr=False)

    def step(self, x: Array, write_indices: Sequence[int]) -> Array:
        """Append packed tokens to the cache and return y."""
        if self._session is None:
            self._session = self.node.session()
        binding = self._session.io_binding()
        feeds = {"query": x}
        if not self.node.packed:
            names = ["query", "key", "value"]
            parts = (part.reshape(*x.shape[:2], -1) for part in self.node.columns(x))
            feeds = {
                name: np.ascontiguousarray(part) for name, part in zip(names, parts, strict=True)
            }
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        positions = np.array(write_indices, np.int64)
        binding.bind_cpu_input("write_indices", positions)
        binding.bind_output("y", "cpu")
        kind = DTYPES[self.node.dtype][1]
        for name, array in {"key": self.key, "value": self.value}.items():
            bound = ("cpu", 0, kind, array.shape, array.ctypes.data)
            binding.bind_input(f"past_{name}", *bound)
            binding.bind_output(f"present_{name}", *bound)
        self._session.run_with_iobinding(binding)
        y: Array = binding.get_outputs()[0].numpy()
        return y

    def rows(self, name: str) -> Array:
        """Return the cache's contents [B, M, T, D] in float64."""
        array: Array = getattr(self, name)
        if self.node.dtype != "int8":
            return array.astype(np.float64)
        codes = array[..., :-SCALE_BYTES].astype(np.float64)
        scale = np.ascontiguousarray(array[..., -SCALE_BYTES:]).view(np.float32)
        return codes * scale.astype(np.float64)


def positions_of(write_indices: Sequence[int], tokens: int) -> Array:
    """Return the positions [B, S] of new tokens."""
    return np.array(write_indices)[:, None] + np.arange(tokens)


def expected(node: Attention, x: Array, cache: Cache, write_indices: Sequence[int]) -> Array:
    """Return y in float64, from the cache's rows."""
    positions = positions_of(write_indices, x.shape[1])
    query = node.placed(node.columns(x)[0], node.query_norm, positions)
    scale = node.scale or node.head_size**-0.5
    keys, values = cache.rows("key"), cache.rows("value")
    y = np.empty(query.shape)
    for b, s, h in np.ndindex(*query.shape[:3]):
        head = h // (node.heads // node.kv_heads)
        length = min(write_indices[b] + s + 1, node.capacity)
        score = keys[b, head, :length] @ query[b, s, h] * scale
        weight = np.exp(score - score.max())
        y[b, s, h] = weight @ values[b, head, :length] / weight.sum()
    return y.reshape(*x.shape[:2], -1)
