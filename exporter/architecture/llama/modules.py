"""The family as small torch modules: embedding, decoder layer, head.

Structure follows Hugging Face's ``LlamaForCausalLM``; shapes as in ``engines.manifest.TensorRole``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..architecture import CachedAttention
from ..modules import Projection, Table
from .structure import LlamaSpec


class RmsNorm(nn.Module):
    """Root mean square normalisation (arXiv 1910.07467) in float32, for inputs of any dtype."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(size, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise [..., E] over the last axis."""
        normalised = F.rms_norm(inputs.float(), self.weight.shape, self.weight, self.epsilon)
        return normalised.to(inputs.dtype)


class Embedding(nn.Module):
    """Token embedding; positions are in the layers."""

    def __init__(self, model: LlamaSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = Table(model.vocab_size, model.hidden_size, dtype=dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map input_ids [B, S] to hidden states [B, S, E]."""
        embedded: Tensor = self.embed_tokens(input_ids)
        return embedded


class SelfAttention(nn.Module):
    """Grouped-query attention over a cache of rotated keys, with one packed product.

    The operator RotaryEmbedding (opset 23) turns the first R elements of a head, halves against
    each other. Angles are computed in float32 whatever the dtype.
    """

    def __init__(self, model: LlamaSpec, dtype: torch.dtype, attention: CachedAttention) -> None:
        super().__init__()
        self.head_dim, self.rotary_dim = model.head_dim, model.rotary_dim
        query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        self.sizes, self.scale, self.attention = (query, key, key), model.rope_scale, attention
        size = model.hidden_size
        self.qkv_proj = Projection(size, query + 2 * key, bias=model.qkv_bias, dtype=dtype)
        self.norms_whole = model.head_norms == "whole"
        self.q_norm = self.k_norm = None
        if model.head_norms != "none":
            widths = (query, key) if self.norms_whole else (model.head_dim, model.head_dim)
            self.q_norm, self.k_norm = (RmsNorm(width, model.rms_norm_eps) for width in widths)
        self.inv_freq = nn.Parameter(torch.empty(model.rotary_dim // 2, dtype=torch.float32))
        self.o_proj = Projection(query, size, bias=model.output_bias, dtype=dtype)

    def forward(
        self,
        hidden_states: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        write_indices: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden_states [B, S, E] to attention output [B, S, E], present_key, present_value."""
        packed = self.qkv_proj(hidden_states)  # [B, S, (N + 2M) D]
        query, key, value = packed.split(self.sizes, dim=-1)
        if self.norms_whole:
            query, key = self._normalised(query, key)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, N or M, S, D]
            for part in (query, key, value)
        )
        if not self.norms_whole:
            query, key = self._normalised(query, key)
        cosines, sines = self._turns(position_ids, hidden_states.dtype)
        query, key = (self._rotated(part, cosines, sines) for part in (query, key))
        attended, present_key, present_value = self.attention(
            query, key, value, past_key, past_value, write_indices, attention_mask
        )
        merged = attended.transpose(1, 2).flatten(2)  # [B, S, N D]
        return self.o_proj(merged), present_key, present_value

    def _normalised(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return query, key
        return self.q_norm(query), self.k_norm(key)

    def _turns(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [B, S, R / 2] of the angles at position_ids [B, S]."""
        angles = position_ids[..., None].float() * self.inv_freq
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


class FeedForward(nn.Module):
    """``down(SiLU(gate(x)) · up(x))`` (SwiGLU, arXiv 2002.05202), gate and up in one product."""

    def __init__(self, model: LlamaSpec, dtype: torch.dtype) -> None:
        super().__init__()
        size, ffn_dim, bias = model.hidden_size, model.ffn_dim, model.mlp_bias
        self.gate_up_proj = Projection(size, 2 * ffn_dim, bias=bias, dtype=dtype)
        self.down_proj = Projection(ffn_dim, size, bias=bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Map [B, S, E] to [B, S, E]."""
        gate, up = self.gate_up_proj(states).chunk(2, dim=-1)
        projected: Tensor = self.down_proj(F.silu(gate) * up)
        return projected


class DecoderLayer(nn.Module):
    """One decoder layer, with norms before attention and feed-forward or after them (OLMo 2)."""

    def __init__(self, model: LlamaSpec, dtype: torch.dtype, attention: CachedAttention) -> None:
        super().__init__()
        size, epsilon = model.hidden_size, model.rms_norm_eps
        self.norms_behind = bool(model.norms_behind)
        self.self_attn = SelfAttention(model, dtype, attention)
        self.mlp = FeedForward(model, dtype)
        self.post_attention_layernorm = RmsNorm(size, epsilon)
        if self.norms_behind:
            self.post_feedforward_layernorm = RmsNorm(size, epsilon)
        else:
            self.input_layernorm = RmsNorm(size, epsilon)

    def forward(
        self,
        hidden_states: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        write_indices: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden_states_out, present_key and present_value, as canonical layers do."""
        cache = (past_key, past_value, write_indices, attention_mask, position_ids)
        if self.norms_behind:
            attended, *present = self.self_attn(hidden_states, *cache)
            hidden_states = hidden_states + self.post_attention_layernorm(attended)
            projected = self.mlp(hidden_states)
            hidden_states = hidden_states + self.post_feedforward_layernorm(projected)
        else:
            attended, *present = self.self_attn(self.input_layernorm(hidden_states), *cache)
            hidden_states = hidden_states + attended
            hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states, present[0], present[1]


class Head(nn.Module):
    """Final norm and vocabulary product of selected rows."""

    def __init__(self, model: LlamaSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = RmsNorm(model.hidden_size, model.rms_norm_eps)
        self.lm_head = Projection(model.hidden_size, model.vocab_size, bias=False, dtype=dtype)

    def forward(self, hidden_states: Tensor, row_positions: Tensor) -> Tensor:
        """Map hidden_states [B, S, E] and row_positions [R] into B*S to float32 logits [R, V]."""
        rows = hidden_states.flatten(0, 1).index_select(0, row_positions)  # [R, E]
        logits: Tensor = self.lm_head(self.norm(rows))  # [R, V]
        return logits.float()
