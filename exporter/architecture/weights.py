"""Which checkpoint tensors each engine's parameters are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...engines.manifest import EngineKind, ModelSpec

POSITION_OFFSET = 2  # rows that OPT's position table has before position 0
LAYER_NORM_EPSILON = 1e-5

Array = NDArray[Any]


class TensorReader(Protocol):
    """What a parameter needs of a checkpoint."""

    def read(self, name: str) -> Array:
        """The tensor ``name`` as stored: float16 or float32, memory-mapped or a fresh array."""
        ...


@dataclass(frozen=True)
class Parameter:
    """One parameter of an engine's graph and the checkpoint tensors it is made of.

    A projection is stored as [out, in] in the checkpoint and as [in, out] in the graph; several
    sources are packed side by side along ``out``. No sources: a weight of ones. A norm's
    parameters stay float32 in a float16 engine (``keeps_float32``).
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    transposed: bool = False
    keeps_float32: bool = False

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of each source in the checkpoint."""
        *in_sizes, out_size = self.shape
        if len(self.sources) > 1:
            out_size //= len(self.sources)
        return (out_size, *in_sizes) if self.transposed else (*in_sizes, out_size)

    def load(self, reader: TensorReader) -> Array:
        """Read the parameter, of shape ``shape`` and the checkpoint's dtype.

        The result may be a transposed view, and may be memory-mapped: read it, don't write it.
        Only one source is read at a time.
        """
        if not self.sources:
            return np.ones(self.shape, np.float32)
        if len(self.sources) == 1:
            array = reader.read(self.sources[0])
            return array.T if self.transposed else array
        packed: Array | None = None
        for index, source in enumerate(self.sources):
            array = reader.read(source)
            if packed is None:
                packed = np.empty((len(self.sources), *array.shape), array.dtype)
            packed[index] = array
        assert packed is not None
        return packed.reshape(-1, packed.shape[-1]).T if self.transposed else packed.reshape(-1)


def engine_name(kind: EngineKind, layer_index: int | None = None) -> str:
    """The name of an engine: ``embed``, ``layer_007``, ``head``, ``candidates``."""
    return f"layer_{layer_index:03d}" if kind is EngineKind.LAYER else str(kind)


def engine_parameters(
    kind: EngineKind, model: ModelSpec, layer_index: int | None = None
) -> tuple[Parameter, ...]:
    """All parameters of one engine; ``layer_index`` is required for a layer, refused elsewhere."""
    assert (layer_index is not None) == (kind is EngineKind.LAYER), (kind, layer_index)
    match kind:
        case EngineKind.EMBED:
            return _embed_parameters(model)
        case EngineKind.LAYER:
            return _layer_parameters(model, f"decoder.layers.{layer_index}.")
        case EngineKind.HEAD:
            return _head_parameters(model)
        case EngineKind.CANDIDATES:
            return ()


def expected_tensors(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of ``model`` must hold, with its shape, by canonical name."""
    engines: list[tuple[EngineKind, int | None]] = [
        (EngineKind.EMBED, None),
        *((EngineKind.LAYER, index) for index in range(model.num_layers)),
        (EngineKind.HEAD, None),
    ]
    return {
        source: parameter.source_shape
        for kind, index in engines
        for parameter in engine_parameters(kind, model, index)
        for source in parameter.sources
    }


def _embed_parameters(model: ModelSpec) -> tuple[Parameter, ...]:
    width, hidden_size = model.word_embed_proj_dim, model.hidden_size
    tokens = "embed_tokens.weight"
    positions = "embed_positions.weight"
    table_rows = model.max_position_embeddings + POSITION_OFFSET
    return (
        Parameter(tokens, (model.vocab_size, width), (f"decoder.{tokens}",)),
        Parameter(positions, (table_rows, hidden_size), (f"decoder.{positions}",)),
        *_residual_projection("project_in", width, hidden_size),
    )


def _layer_parameters(model: ModelSpec, prefix: str) -> tuple[Parameter, ...]:
    size, ffn_dim = model.hidden_size, model.ffn_dim

    def projection(
        name: str, in_size: int, out_size: int, sources: tuple[str, ...]
    ) -> tuple[Parameter, ...]:
        paths = [prefix + source for source in sources]
        weights = tuple(f"{path}.weight" for path in paths)
        biases = tuple(f"{path}.bias" for path in paths)
        weight = Parameter(f"{name}.weight", (in_size, out_size), weights, transposed=True)
        bias = Parameter(f"{name}.bias", (out_size,), biases)
        return (weight, bias) if model.enable_bias else (weight,)

    attention = "self_attn."
    qkv_sources = tuple(attention + name for name in ("q_proj", "k_proj", "v_proj"))
    out_proj = attention + "out_proj"
    return (
        *_layer_norm(model, "self_attn_layer_norm", prefix),
        *projection(attention + "qkv_proj", size, 3 * size, qkv_sources),
        *projection(out_proj, size, size, (out_proj,)),
        *_layer_norm(model, "final_layer_norm", prefix),
        *projection("fc1", size, ffn_dim, ("fc1",)),
        *projection("fc2", ffn_dim, size, ("fc2",)),
    )


def _head_parameters(model: ModelSpec) -> tuple[Parameter, ...]:
    width = model.word_embed_proj_dim
    tied = model.tie_word_embeddings
    source = "decoder.embed_tokens.weight" if tied else "lm_head.weight"
    norm = _layer_norm(model, "final_layer_norm", "decoder.") if model.final_layer_norm else ()
    return (
        *norm,
        *_residual_projection("project_out", model.hidden_size, width),
        Parameter("lm_head.weight", (width, model.vocab_size), (source,), transposed=True),
    )


def _layer_norm(model: ModelSpec, name: str, prefix: str) -> tuple[Parameter, ...]:
    shape = (model.hidden_size,)
    if not model.layer_norm_elementwise_affine:
        return (Parameter(f"{name}.weight", shape, (), keeps_float32=True),)
    return tuple(
        Parameter(f"{name}.{part}", shape, (f"{prefix}{name}.{part}",), keeps_float32=True)
        for part in ("weight", "bias")
    )


def _residual_projection(name: str, in_size: int, out_size: int) -> tuple[Parameter, ...]:
    """The 350m's project_in or project_out; nothing where both sizes are equal."""
    if in_size == out_size:
        return ()
    path = f"{name}.weight"
    return (Parameter(path, (in_size, out_size), (f"decoder.{path}",), transposed=True),)
