"""OPT as small torch modules: embedding, decoder layer, head.

Structure follows Hugging Face's ``OPTForCausalLM``; shapes as in ``engines.manifest.TensorRole``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..architecture import CachedAttention
from ..modules import Projection, Table
from .structure import OptSpec
from .weights import POSITION_OFFSET

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}
LAYER_NORM_EPSILON = 1e-5


class LayerNorm(nn.Module):
    """Layer normalisation in float32, including its parameters, for inputs of any dtype.

    Without affine parameters the weight is kept as ones, because the ONNX operator requires it.
    """

    def __init__(self, size: int, *, affine: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(size, dtype=torch.float32)) if affine else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise [..., E] over the last axis."""
        normalised = F.layer_norm(
            inputs.float(), self.weight.shape, self.weight, self.bias, LAYER_NORM_EPSILON
        )
        return normalised.to(inputs.dtype)


class Embedding(nn.Module):
    """Token embedding, projected to the hidden size if it is narrower, plus position."""

    def __init__(self, model: OptSpec, dtype: torch.dtype) -> None:
        super().__init__()
        width, hidden_size = model.word_embed_proj_dim, model.hidden_size
        positions = model.max_position_embeddings + POSITION_OFFSET
        self.embed_tokens = Table(model.vocab_size, width, dtype=dtype)
        self.embed_positions = Table(positions, hidden_size, dtype=dtype)
        self.project_in = None
        if width != hidden_size:
            self.project_in = Projection(width, hidden_size, bias=False, dtype=dtype)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Map input_ids and position_ids [B, S] to hidden states [B, S, E]."""
        embedded: Tensor = self.embed_tokens(input_ids)  # [B, S, P]
        if self.project_in is not None:
            embedded = self.project_in(embedded)  # [B, S, E]
        positions: Tensor = self.embed_positions(position_ids + POSITION_OFFSET)
        return embedded + positions


class SelfAttention(nn.Module):
    """Multi-head self-attention over a cache, with query, key and value in one product."""

    def __init__(self, model: OptSpec, dtype: torch.dtype, attention: CachedAttention) -> None:
        super().__init__()
        size, bias = model.hidden_size, model.enable_bias
        self.num_heads, self.head_dim = model.num_heads, model.head_dim
        self.attention = attention
        self.qkv_proj = Projection(size, 3 * size, bias=bias, dtype=dtype)
        self.out_proj = Projection(size, size, bias=bias, dtype=dtype)

    def forward(
        self,
        hidden_states: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        write_indices: Tensor,
        attention_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden_states [B, S, E] to attention output [B, S, E], present_key, present_value."""
        packed = self.qkv_proj(hidden_states)  # [B, S, 3E]
        query, key, value = (self._split_heads(part) for part in packed.chunk(3, dim=-1))
        attended, present_key, present_value = self.attention(
            query, key, value, past_key, past_value, write_indices, attention_mask
        )
        merged = attended.transpose(1, 2).flatten(2)  # [B, S, E]
        return self.out_proj(merged), present_key, present_value

    def _split_heads(self, states: Tensor) -> Tensor:
        """Reshape [B, S, E] to [B, N, S, D]."""
        heads = states.reshape(*states.shape[:2], self.num_heads, self.head_dim)
        return heads.transpose(1, 2)


class DecoderLayer(nn.Module):
    """One decoder layer, with norms before attention and feed-forward or after them (350m)."""

    def __init__(self, model: OptSpec, dtype: torch.dtype, attention: CachedAttention) -> None:
        super().__init__()
        size, bias = model.hidden_size, model.enable_bias
        affine = model.layer_norm_elementwise_affine
        self.norm_before = model.do_layer_norm_before
        self.activation = ACTIVATIONS[model.activation_function]()
        self.self_attn = SelfAttention(model, dtype, attention)
        self.self_attn_layer_norm = LayerNorm(size, affine=affine)
        self.fc1 = Projection(size, model.ffn_dim, bias=bias, dtype=dtype)
        self.fc2 = Projection(model.ffn_dim, size, bias=bias, dtype=dtype)
        self.final_layer_norm = LayerNorm(size, affine=affine)

    def forward(
        self,
        hidden_states: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        write_indices: Tensor,
        attention_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden_states_out, present_key and present_value, as canonical layers do."""
        cache = (past_key, past_value, write_indices, attention_mask)
        if self.norm_before:
            attended, *present = self.self_attn(self.self_attn_layer_norm(hidden_states), *cache)
            hidden_states = hidden_states + attended
            hidden_states = hidden_states + self._feed_forward(self.final_layer_norm(hidden_states))
        else:
            attended, *present = self.self_attn(hidden_states, *cache)
            hidden_states = self.self_attn_layer_norm(hidden_states + attended)
            hidden_states = self.final_layer_norm(hidden_states + self._feed_forward(hidden_states))
        return hidden_states, present[0], present[1]

    def _feed_forward(self, states: Tensor) -> Tensor:
        projected: Tensor = self.fc2(self.activation(self.fc1(states)))
        return projected


class Head(nn.Module):
    """Final norm, projection and vocabulary product of selected rows."""

    def __init__(self, model: OptSpec, dtype: torch.dtype) -> None:
        super().__init__()
        width, hidden_size = model.word_embed_proj_dim, model.hidden_size
        self.final_layer_norm = self.project_out = None
        if model.final_layer_norm:
            affine = model.layer_norm_elementwise_affine
            self.final_layer_norm = LayerNorm(hidden_size, affine=affine)
        if width != hidden_size:
            self.project_out = Projection(hidden_size, width, bias=False, dtype=dtype)
        self.lm_head = Projection(width, model.vocab_size, bias=False, dtype=dtype)

    def forward(self, hidden_states: Tensor, row_positions: Tensor) -> Tensor:
        """Map hidden_states [B, S, E] and row_positions [R] into B*S to float32 logits [R, V]."""
        rows = hidden_states.flatten(0, 1).index_select(0, row_positions)  # [R, E]
        if self.final_layer_norm is not None:
            rows = self.final_layer_norm(rows)
        if self.project_out is not None:
            rows = self.project_out(rows)  # [R, P]
        logits: Tensor = self.lm_head(rows)  # [R, V]
        return logits.float()
