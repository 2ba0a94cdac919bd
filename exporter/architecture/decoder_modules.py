"""The engines of a ``Decoder`` as small torch modules; shapes as in ``TensorRole``.

Parts are registered under the paths that the ``Decoder`` names and looked up by them at each call,
so that a product may be replaced (``nn.Module.set_submodule``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...engines.manifest import NUM_JOINED, EngineKind, ModelSpec
from . import decoder as data
from .architecture import decoder_of
from .modules import CachedAttention, Candidates, Projection, Table, cached_attention


def _gated_silu(states: Tensor) -> Tensor:
    """Return ``SiLU(gate) · up`` (SwiGLU, arXiv 2002.05202) from one tensor that holds both."""
    gate, up = states.chunk(2, dim=-1)
    return F.silu(gate) * up


_ACTIVATIONS: Mapping[data.Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gated silu": _gated_silu,
}


class Norm(nn.Module):
    """An RMS norm (arXiv 1910.07467) or layer norm for inputs of any dtype.

    It computes in float32, which its parameters are, too. A norm without weights has weights of 1,
    because the ONNX operator requires them.
    """

    def __init__(self, norm: data.Norm) -> None:
        super().__init__()
        self.epsilon, self.is_rms = norm.epsilon, norm.kind == "rms"
        self.weight = nn.Parameter(torch.empty(norm.width, dtype=torch.float32))
        self.bias = None
        if norm.kind == "layer":
            self.bias = nn.Parameter(torch.empty(norm.width, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise [..., E] over the last axis."""
        shape, wide = self.weight.shape, inputs.float()
        if self.is_rms:
            normalised = F.rms_norm(wide, shape, self.weight, self.epsilon)
        else:
            normalised = F.layer_norm(wide, shape, self.weight, self.bias, self.epsilon)
        return normalised.to(inputs.dtype)


class _Engine(nn.Module):
    """A module whose parts have dotted paths."""

    def _add(self, part: data.Norm | data.Product | None, dtype: torch.dtype) -> str | None:
        """Create a part and return its path; return None if there is no part."""
        if part is None:
            return None
        owner, name = self._owner(part.name)
        if isinstance(part, data.Norm):
            owner.add_module(name, Norm(part))
        else:
            out_size = sum(part.out_sizes)
            product = Projection(part.in_size, out_size, bias=part.bias, dtype=dtype)
            owner.add_module(name, product)
        return part.name

    def _owner(self, path: str) -> tuple[nn.Module, str]:
        """Return the parent module of ``path``, created if it is missing, and the last name."""
        outer, _, name = path.rpartition(".")
        if outer and not hasattr(self, outer):
            self.add_module(outer, nn.Module())
        return self.get_submodule(outer), name

    def _run(self, path: str | None, inputs: Tensor) -> Tensor:
        """Call the part at ``path``; if there is none, return ``inputs``."""
        if path is None:
            return inputs
        outputs: Tensor = self.get_submodule(path)(inputs)
        return outputs


class DecoderEmbedding(_Engine):
    """Token embedding, projected to the hidden size if it is narrower, plus any learned position.

    With rotary positions, it takes no position_ids.
    """

    def __init__(self, decoder: data.Decoder, dtype: torch.dtype) -> None:
        super().__init__()
        model, positions = decoder.model, decoder.positions
        self.embed_tokens = Table(model.vocab_size, decoder.token_width, dtype=dtype)
        self.embed_positions, self.offset = None, 0
        if isinstance(positions, data.PositionTable):
            self.embed_positions = Table(positions.rows, model.hidden_size, dtype=dtype)
            self.offset = positions.offset
        self.projection = self._add(decoder.project_in, dtype)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Map input_ids and position_ids [B, S] to hidden states [B, S, E]."""
        embedded = self._run(self.projection, self.embed_tokens(input_ids))  # [B, S, P] → E
        if self.embed_positions is None:
            return embedded
        assert position_ids is not None
        positions: Tensor = self.embed_positions(position_ids + self.offset)
        return embedded + positions


class DecoderLayer(_Engine):
    """Attention over a cache, with queries, keys and values in one product, and feed-forward.

    With rotary positions, the operator RotaryEmbedding (opset 23) rotates the first R elements of
    each head, element i with element i + R/2, and the cache holds rotated keys. Angles are computed
    in float32.
    """

    def __init__(
        self, decoder: data.Decoder, dtype: torch.dtype, attention: CachedAttention
    ) -> None:
        super().__init__()
        model, positions = decoder.model, decoder.positions
        query, key = (heads * model.head_dim for heads in (model.num_heads, model.num_kv_heads))
        self.head_dim, self.sizes, self.attention = model.head_dim, (query, key, key), attention
        self.norm_place, self.activation = decoder.norm_place, decoder.activation
        self.qkv = self._add(decoder.qkv, dtype)
        self.head_norms = tuple(self._add(norm, dtype) for norm in decoder.head_norms)
        self.norms_whole = decoder.norms_whole
        self.rotary_dim, self.scale = 0, 1.0
        if isinstance(positions, data.Rotation):
            self.rotary_dim, self.scale = 2 * len(positions.frequencies), positions.scale
            owner, name = self._owner(data.FREQUENCIES)
            frequencies = torch.empty(len(positions.frequencies), dtype=torch.float32)
            owner.register_parameter(name, nn.Parameter(frequencies))
        self.output = self._add(decoder.output, dtype)
        first, second = decoder.norms
        norm = self._add(first, dtype)
        self.feed_forward = tuple(self._add(part, dtype) for part in decoder.feed_forward)
        self.norms = (norm, self._add(second, dtype))

    def forward(
        self,
        hidden_states: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        write_indices: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden_states_out, present_key and present_value, as canonical layers do."""
        (norm, second_norm), present = self.norms, []

        def attend(states: Tensor) -> Tensor:
            query, key, value = self._heads(states, position_ids)
            attended, *caches = self.attention(
                query, key, value, past_key, past_value, write_indices, attention_mask
            )
            present.extend(caches)
            return self._run(self.output, attended.transpose(1, 2).flatten(2))  # [B, S, E]

        hidden_states = self._add_to(hidden_states, attend, norm)
        hidden_states = self._add_to(hidden_states, self._feed_forward, second_norm)
        return hidden_states, present[0], present[1]

    def _add_to(
        self, residual: Tensor, function: Callable[[Tensor], Tensor], norm: str | None
    ) -> Tensor:
        """Add ``function`` of the residual [B, S, E] to it, with a norm where the family has it."""
        match self.norm_place:
            case "before":
                return residual + function(self._run(norm, residual))
            case "of sum":
                return self._run(norm, residual + function(residual))
            case "of added":
                return residual + self._run(norm, function(residual))

    def _heads(self, states: Tensor, position_ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Map [B, S, E] to query [B, N, S, D], and key and value [B, M, S, D], for attention."""
        packed: Any = self._run(self.qkv, states)  # [B, S, (N + 2M) D]
        is_rotated = self.rotary_dim > 0  # where heads may share keys; else all three are equal
        query, key, value = packed.split(self.sizes, -1) if is_rotated else packed.chunk(3, -1)
        if self.norms_whole:
            query, key = self._normalised(query, key)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (query, key, value)
        )
        if not self.norms_whole:
            query, key = self._normalised(query, key)
        if is_rotated:
            assert position_ids is not None
            cosines, sines = self._turns(position_ids, states.dtype)
            query, key = (self._rotated(part, cosines, sines) for part in (query, key))
        return query, key, value

    def _normalised(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if not self.head_norms:
            return query, key
        query_norm, key_norm = self.head_norms
        return self._run(query_norm, query), self._run(key_norm, key)

    def _turns(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [B, S, R / 2] of the angles at position_ids [B, S]."""
        angles = position_ids[..., None].float() * self.get_parameter(data.FREQUENCIES)
        cosines, sines = angles.cos(), angles.sin()
        if self.scale != 1:
            cosines, sines = cosines * self.scale, sines * self.scale
        return cosines.to(dtype), sines.to(dtype)

    def _rotated(self, states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotate [B, N, S, D]."""
        partial = 0 if self.rotary_dim == self.head_dim else self.rotary_dim
        rotated: Tensor = torch.onnx.ops.rotary_embedding(
            states, cosines, sines, rotary_embedding_dim=partial
        )
        return rotated

    def _feed_forward(self, states: Tensor) -> Tensor:
        first, second = self.feed_forward
        activated = _ACTIVATIONS[self.activation](self._run(first, states))
        return self._run(second, activated)


class DecoderHead(_Engine):
    """The final norm and projection, if any, and the vocabulary product of selected rows."""

    def __init__(self, decoder: data.Decoder, dtype: torch.dtype) -> None:
        super().__init__()
        parts = (decoder.final_norm, decoder.project_out, decoder.head)
        self.parts = tuple(self._add(part, dtype) for part in parts)

    def forward(self, hidden_states: Tensor, row_positions: Tensor) -> Tensor:
        """Map hidden_states [B, S, E] and row_positions [R] into B*S to float32 logits [R, V]."""
        rows = hidden_states.flatten(0, 1).index_select(0, row_positions)  # [R, E]
        for part in self.parts:
            rows = self._run(part, rows)
        return rows.float()


class DecoderJoin(_Engine):
    """A product of several states, each normalised by its own RMS norm."""

    def __init__(self, join: data.Join, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = join.norms[0].width
        self.parts = tuple(self._add(norm, dtype) for norm in join.norms)
        self.whole = self._add(join.product, dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Map states [B, S, J · E] to one, [B, S, E]."""
        parts = zip(self.parts, torch.split(states, self.width, -1), strict=True)
        return self._run(self.whole, torch.cat([self._run(*part) for part in parts], dim=-1))


def engine_module(
    kind: EngineKind,
    model: ModelSpec,
    dtype: torch.dtype = torch.float32,
    attention: CachedAttention = cached_attention,
) -> nn.Module:
    """Return an engine's module, weights uninitialised, in evaluation mode without gradients.

    Its parameter names and shapes are those of ``engine_parameters``; inputs and outputs are those
    of the canonical graph, in order.
    """
    return _module(kind, model, dtype, attention).eval().requires_grad_(False)


def _module(
    kind: EngineKind, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention
) -> nn.Module:
    if kind is EngineKind.CANDIDATES:
        return Candidates(model)
    if kind in NUM_JOINED:
        return DecoderJoin(data.Join.of(kind, model), dtype)
    decoder = decoder_of(model)
    if kind is EngineKind.EMBED:
        return DecoderEmbedding(decoder, dtype)
    if kind is EngineKind.HEAD:
        return DecoderHead(decoder, dtype)
    return DecoderLayer(decoder, dtype, attention)
